"""The command `buildfarm worker`, and the options of commands that can use workers."""
