"""The stories of the private index: publish, check, yank."""
