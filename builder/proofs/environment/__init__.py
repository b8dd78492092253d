"""Judges a Python environment by its files: driver, torch, CUDA packages, and packages with torch extensions."""
