"""Images and containers: Dockerfiles, registries and the Docker engine; and the saved folder in place of the network."""
