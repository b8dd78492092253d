"""Facts from the operating system and the GPU driver: exit status, limits, crashes, GPUs."""
