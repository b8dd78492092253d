"""Programs for maintainers. They are not installed."""
