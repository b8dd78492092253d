"""The index server: pages and files for installers, uploads by twine and `uv publish`, tokens and log."""
