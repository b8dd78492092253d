"""The commands of the private index."""
