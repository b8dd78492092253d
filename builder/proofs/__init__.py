"""Checks of finished wheels."""
