"""How it is built: sources, environments, compiling, repair, facts read from the file."""
