"""Checks that read the wheel file without executing its code, and the linkage check."""
