"""What the store holds: sizes, last use, and the reports of earlier runs."""
