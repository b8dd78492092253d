"""Tests of the room `matrix/`."""
