"""Readers of wheel files: archive, metadata, libraries, GPU code. They execute nothing of the wheel."""
