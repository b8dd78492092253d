"""`buildfarm smoke`: finds the wheels and the cells, and runs the checks."""
