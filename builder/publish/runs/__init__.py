"""The report of runs: what `buildfarm report` writes as HTML, Markdown and JSON, and the picture of the timeline."""
