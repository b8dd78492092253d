"""The command that writes the workflows for GitHub Actions."""
