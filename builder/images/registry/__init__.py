"""Registries: image names, mirrors, digests (buildfarm.lock), sizes, and pulling base images with progress."""
