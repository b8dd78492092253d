"""Progress of running builds: which files are compiled, and how it is shown on a terminal and in CI."""
