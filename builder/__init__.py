"""buildfarm: builds wheels of PyTorch CUDA extensions, and tests each wheel in every cell that it serves."""

__version__: str

#: Variable with the folder that `buildfarm store save` wrote; it is here because each command declares the option.
SAVED = "BUILDFARM_FROM"


def __getattr__(name: str) -> str:
    """The version, `__version__`; importlib.metadata is imported for it, which takes a tenth of a short command."""
    if name != "__version__":
        raise AttributeError(name)
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415

    try:
        return version("buildfarm")
    except PackageNotFoundError:  # run from a tree that was never installed
        return "0+unknown"
