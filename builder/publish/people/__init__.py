"""The pages of an index for people: what was tested where, how to install it, and the evidence."""
