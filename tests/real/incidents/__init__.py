"""The five incidents that buildfarm exists to end: each fault is made for real, and a command stops it."""
