"""Output: dist/, the package index and its server, provenance, reports, and the text that the commands print."""
