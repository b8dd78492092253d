"""Does it work: static checks and checks in a cell's environment."""
