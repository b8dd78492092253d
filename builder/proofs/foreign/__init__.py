"""Wheels that others built: the cells that such a wheel claims, and what is checked."""
