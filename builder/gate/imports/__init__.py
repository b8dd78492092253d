"""What the imports of an extension do: in which order they work, and which libraries they load."""
