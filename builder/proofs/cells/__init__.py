"""Checks that install the wheel in the environment of one cell, on this machine or in a container."""
