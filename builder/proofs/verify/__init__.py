"""Verdicts on a wheel from its file alone: the static checks, and what only `buildfarm verify` checks."""
