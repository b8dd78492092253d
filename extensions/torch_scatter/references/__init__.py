"""What the op gate holds the extension against."""
