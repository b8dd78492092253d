// An empty Python module, so that `import` loads the library and thereby runs
// its operator registrations. Nothing is exported to Python but the init
// function, hence no pybind.
#pragma once

// The three names of CPython's stable ABI that an empty module needs, written
// out, so that the build does not ask for Python's headers: a bare system
// Python has none. The layout of PyModuleDef is part of that ABI (PEP 384 and
// docs.python.org/3/c-api/module.html) and the same in every release from 3.2.
#include <cstddef>

extern "C" {
struct _object;
struct DiffrastModuleDef {
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
_object* PyModule_Create2(DiffrastModuleDef*, int);
}

// 3 is PYTHON_ABI_VERSION, which a module of the stable ABI names.
#define DIFFRAST_MODULE(name)                                                                    \
  extern "C" __attribute__((visibility("default"))) _object* PyInit_##name() {               \
    static DiffrastModuleDef definition = {{1, nullptr, nullptr, 0, nullptr}, #name, nullptr, -1, \
                                       nullptr, nullptr, nullptr, nullptr, nullptr};         \
    return PyModule_Create2(&definition, 3);                                                 \
  }
