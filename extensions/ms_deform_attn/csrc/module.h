// An empty Python module, so that `import` loads the library and thereby runs
// its operator registrations. Nothing is exported to Python but the init
// function, hence no pybind.
#pragma once

#ifdef MSDA_ABI3T

// abi3t (PEP 803) has no PyModuleDef: a module is a list of slots (PEP 793). torch defines Py_LIMITED_API as
// CPython 3.10, which has neither.
#undef Py_LIMITED_API
#define Py_TARGET_ABI3T 0x030F0000
#include <Python.h>

#define MSDA_MODULE(name)                                                                  \
  PyABIInfo_VAR(msda_abi);                                                                 \
  static PySlot msda_slots[] = {PySlot_PTR_STATIC(Py_mod_abi, &msda_abi),                  \
                                PySlot_PTR(Py_mod_gil, Py_MOD_GIL_NOT_USED), PySlot_END};  \
  PyMODEXPORT_FUNC PyModExport_##name(void) { return msda_slots; }

#elif defined(MSDA_STABLE)

// The three names of CPython's stable ABI that an empty module needs, written
// out, so that the build does not ask for Python's headers: a bare system
// Python has none. The layout of PyModuleDef is part of that ABI (PEP 384 and
// docs.python.org/3/c-api/module.html) and the same in every release from 3.2.
#include <cstddef>

extern "C" {
struct _object;
struct MsdaModuleDef {
  struct {
    ptrdiff_t reference_count;
    void* type;
    void* init;
    ptrdiff_t index;
    void* copy;
  } base;
  const char* name;
  const char* doc;
  ptrdiff_t size;
  void* methods;
  void* slots;
  void* traverse;
  void* clear;
  void* free;
};
_object* PyModule_Create2(MsdaModuleDef*, int);
}

// 3 is PYTHON_ABI_VERSION, which a module of the stable ABI names.
#define MSDA_MODULE(name)                                                                    \
  extern "C" __attribute__((visibility("default"))) _object* PyInit_##name() {               \
    static MsdaModuleDef definition = {{1, nullptr, nullptr, 0, nullptr}, #name, nullptr, -1, \
                                       nullptr, nullptr, nullptr, nullptr, nullptr};         \
    return PyModule_Create2(&definition, 3);                                                 \
  }

#else

#include <Python.h>

#define MSDA_MODULE(name)                                                                   \
  PyMODINIT_FUNC PyInit_##name(void) {                                                      \
    static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, #name, nullptr, -1,      \
                                            nullptr, nullptr, nullptr, nullptr, nullptr};   \
    return PyModule_Create(&definition);                                                    \
  }

#endif
