"""Finds or installs what builds and cells need: Python environments, Pythons, CUDA toolkits, uv."""
