"""`buildfarm build`: the order of the builds, the choice of an executor, the run."""
