// _C as a Python module. Of its sources only this one reads Python.h: the others compile once for every Python.
#include "module.h"

MSDA_MODULE(_C)
