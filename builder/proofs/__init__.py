"""Checks of finished wheels: of the file, in the environment of a cell, and of a whole environment (`doctor`)."""
