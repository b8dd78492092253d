"""The checks of the op gate."""
