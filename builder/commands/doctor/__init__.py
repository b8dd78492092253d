"""`buildfarm doctor`: judges an environment, and reads the description of another machine."""
