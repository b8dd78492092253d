"""Building wheels: executors, sources, build environments, compiling, repair."""
