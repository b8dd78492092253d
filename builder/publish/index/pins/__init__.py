"""Exact versions and their indexes for a user's project: pyproject.toml for uv, constraints for pip, and locks."""
