"""GitHub Actions: the workflows that `buildfarm ci` writes, and the plan as jobs of these workflows."""
