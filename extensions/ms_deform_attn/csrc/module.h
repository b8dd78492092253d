// An empty Python module, so that `import` loads the library and thereby runs
// its operator registrations. Nothing is exported to Python but the init
// function, hence no pybind.
#pragma once

#include <Python.h>

#define MSDA_MODULE(name)                                                                   \
  PyMODINIT_FUNC PyInit_##name(void) {                                                      \
    static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, #name, nullptr, -1,      \
                                            nullptr, nullptr, nullptr, nullptr, nullptr};   \
    return PyModule_Create(&definition);                                                    \
  }
