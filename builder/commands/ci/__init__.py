"""`buildfarm ci`: writes the workflows of a project for GitHub Actions."""
