"""What the commands of the index print."""
