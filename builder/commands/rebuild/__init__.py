"""`buildfarm rebuild`: builds a wheel again and compares it."""
