"""Sources of a mirror: an index of buildfarm in a folder or bucket, and every index behind a URL."""
