"""The connection to a Dask scheduler: when tasks are submitted, and what happens when workers or the scheduler end."""
