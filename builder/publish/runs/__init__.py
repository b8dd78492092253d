"""The report of runs: what `buildfarm report` writes as HTML, and `--summary` as Markdown."""
