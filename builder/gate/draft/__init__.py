"""Drafts a cases.py: finds out how each op is called by trying inputs in separate processes."""
