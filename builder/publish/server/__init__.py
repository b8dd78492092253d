"""The index server: pages, uploads, tokens and log; and its client, `buildfarm publish --to URL`."""
