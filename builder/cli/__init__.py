"""The command line: the list of the commands, and options that several commands have."""
