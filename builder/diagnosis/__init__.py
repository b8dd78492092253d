"""Why a compile failed: the first error in the output of compilers, and what is known about this error."""
