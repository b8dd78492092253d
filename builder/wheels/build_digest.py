"""The digest of a build: the name of its wheel in the store. A build with another digest is compiled again."""

from __future__ import annotations

from builder.formats import BUILD_FORMAT
from builder.hashing import digest_of
from builder.matrix.config import Recipe
from builder.matrix.plan import Build
from builder.records import Toolchain, recorded_settings
from builder.wheels.job import required_torch


def build_digest(build: Build, recipe: Recipe, toolchain: Toolchain, source: str) -> str:
    """The build's name in the store: a hash of every input that can change the wheel.

    The cells that the build serves are not an input: a later plan may add cells to the same wheel.
    """
    settings = recorded_settings(recipe)
    settings.pop("requires_torch", None)  # `torch_window` is what it results in
    return digest_of(
        {
            "name": str(build),
            "archs": [str(arch) for arch in build.archs],
            "local_version": build.local_version,
            "source": source,
            **settings,
            "torch_window": required_torch(build, recipe),
            "toolchain": [toolchain.executor, str(toolchain.python), toolchain.parts()],
            "format": BUILD_FORMAT,
        }
    )
