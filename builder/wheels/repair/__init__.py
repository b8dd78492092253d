"""Repair: turns the wheel that a compile made into the wheel that is published."""
