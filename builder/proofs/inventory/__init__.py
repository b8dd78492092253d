"""Symbol inventories: what the libraries of a torch release define, small enough to keep for every release."""
