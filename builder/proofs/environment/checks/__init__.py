"""The checks of an environment: each takes its facts and returns findings."""
