// _C: the schemas and the CPU kernels; each operator registers itself in its own file under cpu/.
#include "module.h"

DIFFRAST_MODULE(_C)
