"""The contents of compat.yaml as frozen dataclasses."""
