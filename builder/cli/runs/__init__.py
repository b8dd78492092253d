"""The commands about earlier runs."""
