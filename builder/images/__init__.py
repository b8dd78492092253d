"""Images and containers: Dockerfiles, registries and the Docker engine."""
