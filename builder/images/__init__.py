"""Where it is built: Dockerfiles and the container engine."""
