"""The scheduler of the op gate and the processes that run its checks."""
