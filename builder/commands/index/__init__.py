"""The commands of the private index: publish, check, yank."""
