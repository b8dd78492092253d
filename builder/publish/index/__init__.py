"""The private package index: a folder or a bucket of static files for pip and uv."""
