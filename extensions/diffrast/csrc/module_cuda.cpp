// _C_cuda: the CUDA kernels of the operators that _C defines; each registers itself in its own file under cuda/.
#include "module.h"

DIFFRAST_MODULE(_C_cuda)
