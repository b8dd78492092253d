"""The timeline of a run: its stages, and the cores and the memory that its programs use."""
