"""A wheel whose ops are wrong and try to look right."""
