"""Output: the package index, provenance, report.json, and the text that the commands print."""
