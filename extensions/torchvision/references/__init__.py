"""What the op gate holds the wheel against."""
