"""The commands of the private index, each with its options, its steps and its text."""
