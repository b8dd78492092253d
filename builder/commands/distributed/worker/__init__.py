"""`buildfarm worker`: Dask workers that build and test wheels, each wheel in a process of its own."""
