"""GitHub Actions: the workflows that `buildfarm ci` writes."""
