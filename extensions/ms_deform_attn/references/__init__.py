"""What the op gate and the benchmark hold the extension against."""
