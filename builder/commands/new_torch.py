"""`buildfarm plan --new-torch`: find releases of torch that matrix.yaml does not have."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from builder.cli.output import print_data, print_json
from builder.errors import NothingSelectedError, UsageError
from builder.gate.amounts import counted
from builder.matrix.axes import Torch
from builder.matrix.compat import Compat, and_list
from builder.matrix.config import Selection
from builder.matrix.load import load_matrix, load_recipes
from builder.matrix.plan import make_plan
from builder.wheels.sources.index import Location, locate


def print_new_torches(matrix: Path, *, as_json: bool) -> None:
    """Print the releases newer than those of matrix.yaml, as JSON or as Markdown with a title; nothing without one.

    These are the newest of each known series, unless it gives no cell for the CUDA and Python of matrix.yaml, and a
    newer one of the index. Raises UsageError for a wrong matrix.yaml, MissingToolError if the index does not answer.
    """
    declared, compat = load_matrix(matrix), Compat.load()
    recipes = load_recipes(declared)
    found: list[dict[str, Any]] = []
    texts: list[str] = []
    for release in {torch.series: torch for torch in compat.torches if torch > declared.torch[-1]}.values():
        with suppress(NothingSelectedError):
            plan = make_plan(replace(declared, torch=(release,)), recipes, Selection(), compat)
            builds, cells = len(plan.builds), sum(len(build.serves) for build in plan.builds)
            found.append({"torch": str(release), "known": True, "builds": builds, "cells": cells})
            texts.append(
                f"matrix.yaml does not have torch {release}, which adds {counted(builds, 'build')} for"
                f" {counted(cells, 'cell')}. To build them, add {release.series} to the list `torch` in matrix.yaml."
            )
    if unknown := _unknown_to(compat):
        found.append({"torch": str(unknown), "known": False, "builds": None, "cells": None})
        texts.append(
            f"The package index has torch {unknown}. This version of buildfarm does not know this release: install a"
            " newer buildfarm."
        )
    if as_json:
        print_json({"releases": found})
    elif found:
        title = f"New torch {'release' if len(found) == 1 else 'releases'}: {and_list(one['torch'] for one in found)}"
        print_data("\n\n".join([title, *texts]) + "\n")


def _unknown_to(compat: Compat) -> Torch | None:
    """The newest release of the package index for Linux x86_64, if it is newer than every release that buildfarm knows.

    uv leaves out wheels for Pythons older than the one that it resolves for, so the oldest Python that finds a release
    decides, and not the Python that runs buildfarm.
    """
    known = compat.torches[-1]
    untried = [python for python in compat.torch(known).pythons[known] if not python.free_threaded]
    files: list[Location] = []
    while untried and not files:
        with suppress(UsageError):  # the index has no newer release, or none for so old a Python
            files = locate(f"torch>{known}", "wheel", "--universal", "--python-version", str(untried.pop(0)))
    found = []
    for file in files:
        with suppress(InvalidWheelFilename):
            _, version, _, tags = parse_wheel_filename(file.name)
            if any("linux" in tag.platform and tag.platform.endswith("_x86_64") for tag in tags):
                found.append(Torch.parse(version.base_version))
    return max(found, default=None)
