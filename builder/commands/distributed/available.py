"""Whether Dask is installed: it is an optional dependency."""

from __future__ import annotations

from importlib.util import find_spec

from builder.errors import MissingToolError


def require_dask() -> None:
    """Raise MissingToolError unless Dask's scheduler package is installed."""
    if find_spec("distributed") is None:
        raise MissingToolError(
            "the package `distributed` is not installed; it is needed for builds on several machines",
            hints=["install buildfarm with it: `pip install 'buildfarm[dask]'`"],
        )
