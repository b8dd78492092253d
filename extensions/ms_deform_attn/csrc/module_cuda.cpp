// _C_cuda as a Python module; see module.cpp.
#include "module.h"

MSDA_MODULE(_C_cuda)
