"""Builds and proofs on the workers of a Dask scheduler: what client and workers share."""
