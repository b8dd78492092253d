"""Images and containers: Dockerfiles, registries, the Docker engine; and saved folders in place of the network."""
