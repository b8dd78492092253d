"""Mutated files and command lines: the program refuses each with a sentence, or accepts it."""
