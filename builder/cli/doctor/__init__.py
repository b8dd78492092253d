"""The command `buildfarm doctor`."""
