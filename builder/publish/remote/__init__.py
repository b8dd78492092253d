"""`buildfarm publish --to URL`: what it sends to an index server, and how the server checks the proofs."""
