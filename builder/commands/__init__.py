"""One package for each command, with the steps of the command in order."""
