"""What `buildfarm doctor` prints and writes."""
