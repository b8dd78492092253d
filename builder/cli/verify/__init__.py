"""The commands that judge wheels of others, and the commands of symbol inventories."""
