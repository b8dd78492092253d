/* An extension module as pybind11 makes it: its functions are not dispatcher ops. */
#define Py_LIMITED_API 0x030a0000
#include <Python.h>

static PyObject *total(PyObject *self, PyObject *tensor) { return PyObject_CallMethod(tensor, "sum", NULL); }
static PyMethodDef methods[] = {
    {"total", total, METH_O, "The sum of a tensor."},
#ifdef FORGOTTEN
    {"forgotten", total, METH_O, "The sum of a tensor, by another name."},
#endif
    {0}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_bound", 0, -1, methods};
PyMODINIT_FUNC PyInit__bound(void) { return PyModule_Create(&module); }
