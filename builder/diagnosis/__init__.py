"""Why a compile failed: the first error in the output of compilers, what is known about it, what a setup.py does."""
