"""To whom: the index and the report."""
