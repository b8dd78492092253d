"""`buildfarm plan --new-torch`: find releases of torch that matrix.yaml does not have."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from builder.cli.output import print_data, print_json
from builder.errors import NothingSelectedError, UsageError
from builder.gate.amounts import counted
from builder.matrix.axes import Python, Torch
from builder.matrix.compat import Compat, and_list
from builder.matrix.config import Selection
from builder.matrix.load import load_matrix, load_recipes
from builder.matrix.plan import make_plan
from builder.wheels.sources.index import Location, locate


class NewTorch(NamedTuple):
    """A release of torch that matrix.yaml does not have; builds and cells are None if buildfarm does not know it."""

    torch: Torch
    #: builds, cells: how many builds it adds, and how many cells they serve.
    builds: int | None
    cells: int | None
    #: What to do, as Markdown.
    text: str


def print_new_torches(file: Path, *, as_json: bool) -> None:
    """Print the releases that matrix.yaml lacks, as JSON or as Markdown with a title; nothing without a release."""
    found = new_torches(file)
    if as_json:
        keys = ("torch", "known", "builds", "cells")
        values = ((str(each.torch), each.builds is not None, each.builds, each.cells) for each in found)
        print_json({"releases": [dict(zip(keys, each, strict=True)) for each in values]})
    elif found:
        title = f"New torch {'release' if len(found) == 1 else 'releases'}: {and_list(each.torch for each in found)}"
        print_data("\n\n".join([title, *(each.text for each in found)]) + "\n")


def new_torches(matrix: Path) -> list[NewTorch]:
    """The releases newer than those of matrix.yaml: the newest of each known series, and a newer one of the index.

    A release that gives no cell for the CUDA and Python of matrix.yaml is left out. Raises UsageError for a wrong
    matrix.yaml, MissingToolError if the package index does not answer.
    """
    declared = load_matrix(matrix)
    recipes, compat = load_recipes(declared), Compat.load()
    found = []
    for release in {torch.series: torch for torch in compat.torches if torch > declared.torch[-1]}.values():
        with suppress(NothingSelectedError):
            plan = make_plan(replace(declared, torch=(release,)), recipes, Selection(), compat)
            builds, cells = len(plan.builds), sum(len(build.serves) for build in plan.builds)
            text = (
                f"matrix.yaml does not have torch {release}, which adds {counted(builds, 'build')} for"
                f" {counted(cells, 'cell')}. To build them, add {release.series} to the list `torch` in matrix.yaml."
            )
            found.append(NewTorch(release, builds, cells, text))
    return [*found, *_unknown_to(compat)]


def _unknown_to(compat: Compat) -> list[NewTorch]:
    """The newest release of the package index, if it is newer than every release that buildfarm knows.

    uv leaves out wheels for Pythons older than the one that it resolves for, so the oldest Python that finds a release
    decides, and not the Python that runs buildfarm.
    """
    known = compat.torches[-1]
    untried = [python for python in compat.torch(known).pythons[known] if not python.free_threaded]
    files: list[Location] = []
    while untried and not files:
        with suppress(UsageError):  # the index has no newer release, or none for so old a Python
            files = locate(f"torch>{known}", "wheel", "--universal", "--python-version", str(untried.pop(0)))
    names = [parsed for file in files if (parsed := _parsed(file))]
    if not names:
        return []
    release = max(torch for torch, _ in names)
    pythons = sorted({python for torch, python in names if torch == release})
    lines = [f"releases: [..., {release}]"]
    if release.series not in {torch.series for torch in compat.torches}:
        lines = [f"releases: [{release}]", f"python: [{', '.join(map(str, pythons))}]"]
    row = "\n".join([f"  {release.series}:", *(f"    {line}" for line in lines)])
    text = (
        f"The package index has wheels of torch {release} for Python {and_list(pythons)}. This version of buildfarm"
        " does not know this release: install a newer buildfarm. In a checkout of buildfarm, add the facts to"
        f" builder/matrix/compat.yaml:\n\n```yaml\n{row}\n```"
    )
    return [NewTorch(release, None, None, text)]


def _parsed(file: Location) -> tuple[Torch, Python] | None:
    """The release and the Python of a wheel for Linux x86_64; None for another file."""
    try:
        _, version, _, tags = parse_wheel_filename(file.name)
    except InvalidWheelFilename:
        return None
    for tag in tags:
        if tag.platform.endswith("_x86_64") and "linux" in tag.platform:
            return Torch.parse(version.base_version), Python.parse(tag.abi)
    return None
