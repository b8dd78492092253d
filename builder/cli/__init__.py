"""The command line: one module for each command reads the options, runs the command and prints the result."""
