"""Needs an earlier import of torch, as a library that is linked with libc10 does; does not import its own library."""

import ctypes

ctypes.CDLL("libc10.so")
