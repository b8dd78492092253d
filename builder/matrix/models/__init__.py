"""The keys of matrix.yaml and extension.yaml as pydantic models; schemas and reference pages come from them."""
