"""What `buildfarm store` prints."""
