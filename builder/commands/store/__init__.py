"""`buildfarm store`: shows and frees disk space, and shows the history of runs."""
