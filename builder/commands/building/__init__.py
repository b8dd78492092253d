"""`buildfarm build`: the story of one build, the order of the builds, the choice of an executor."""
