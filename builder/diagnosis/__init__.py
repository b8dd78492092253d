"""Why a compile failed: the first error in the output of compilers, what is known about it, and what a setup.py does."""
