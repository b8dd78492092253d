"""What others wrote: JSON of unknown shape, texts with secrets, and texts with escape codes."""
