"""One module for each command, with its options, its steps and its text."""
