"""Inputs of public bug reports: one small input for each kind."""
