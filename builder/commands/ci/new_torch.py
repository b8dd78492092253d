"""`buildfarm plan --new-torch`: find releases of torch that matrix.yaml does not have."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from builder.errors import NothingSelectedError, UsageError
from builder.matrix.axes import Python, Torch
from builder.matrix.compat import Compat
from builder.matrix.config import Selection
from builder.matrix.load import load_matrix, load_recipes
from builder.matrix.plan import make_plan
from builder.publish.ci.new_torch_text import NewTorch
from builder.wheels.sources.index import Location, locate


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
            found.append(NewTorch(release, len(plan.builds), sum(len(build.serves) for build in plan.builds)))
    return [*found, *_unknown_to(compat)]


def _unknown_to(compat: Compat) -> list[NewTorch]:
    """The newest release of the package index, if it is newer than every release that buildfarm knows."""
    known = compat.torches[-1]
    try:
        files = locate(f"torch>{known}", "wheel", "--universal")
    except UsageError:  # the index has no newer release
        return []
    names = [parsed for file in files if (parsed := _parsed(file))]
    if not names:
        return []
    release = max(torch for torch, _ in names)
    pythons = tuple(sorted({python for torch, python in names if torch == release}))
    return [NewTorch(release, pythons=pythons, series_known=release.series in {t.series for t in compat.torches})]


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
