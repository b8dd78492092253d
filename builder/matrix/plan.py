"""Matrix and recipes to a plan: the builds, the cells each serves, every cell left out and why. Pure."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from builder.errors import NothingSelectedError
from builder.matrix.axes import AbiClass, Arch, Cell, Cuda, Platform, Python, Torch
from builder.matrix.compat import Compat
from builder.matrix.config import Exclude, Matrix, Recipe, Select, WheelSource
from builder.matrix.selection import Axes, select_axes
from builder.matrix.serving import GroupKey, Serving

_SCHEMA = 1
_PREBUILT = "its source is an official wheel: there is nothing to build; `buildfarm smoke` proves it"


@dataclass(frozen=True, order=True)
class Build:
    """One compile: an extension for one toolkit, against one torch, serving one or more cells.

    Attributes:
        extension: the recipe's name.
        version: the extension's own version, without a local part.
        abi: what the binary is tied to.
        torch: the torch it is compiled against (the oldest it serves).
        cuda: the toolkit it is compiled with (the oldest that torch has among the cells it serves).
        pythons: Pythons it may be compiled with, best first; exactly one for the `cpython` class.
        archs: the GPU architectures whose code it must hold.
        platform: where it runs.
        serves: the cells that get this wheel, sorted.

    """

    extension: str
    version: str
    abi: AbiClass
    torch: Torch
    cuda: Cuda
    pythons: tuple[Python, ...]
    archs: tuple[Arch, ...]
    platform: Platform
    serves: tuple[Cell, ...]

    @property
    def local_version(self) -> str:
        """What the wheel's local version says of its ABI (PEP 440): `cu13`, `cu130.torch211`."""
        if self.abi is AbiClass.STABLE:
            return f"cu{self.cuda.major}"
        return f"{self.cuda.variant}.torch{self.torch.major}{self.torch.minor}"

    def __str__(self) -> str:
        """Its one readable name: `ms_deform_attn-0.1.0-stable-torch2.11.0-cu130-py3`."""
        python = self.pythons[0].tag if self.abi is AbiClass.CPYTHON else "py3"
        name = f"{self.extension}-{self.version}-{self.abi}-torch{self.torch}-{self.cuda.variant}-{python}"
        return name if self.platform is Platform.LINUX_X86_64 else f"{name}-{self.platform}"


@dataclass(frozen=True, order=True)
class Skip:
    """A cell that gets no wheel, and why.

    Attributes:
        torch, cuda, python: the axes as asked for; not always a real cell (torch 2.2 has no Python 3.13).
        extension: the recipe it concerns, or empty when it concerns all of them.
        code: a stable word for programs (`no-torch-wheel-for-python`).
        reason: a sentence a person can act on.
        platform: the platform as asked for.

    """

    torch: Torch
    cuda: Cuda
    python: Python
    extension: str
    code: str
    reason: str
    platform: Platform = Platform.LINUX_X86_64


@dataclass(frozen=True)
class Plan:
    """What to build and what not, in a stable order."""

    builds: tuple[Build, ...]
    skips: tuple[Skip, ...]


@dataclass(frozen=True)
class SkipSummary:
    """All the skips with one reason, as one line for a person.

    Attributes:
        code, reason: as in each of them.
        count: how many there are.
        first: the first of them, as an example.

    """

    code: str
    reason: str
    count: int
    first: Skip


def make_plan(matrix: Matrix, recipes: Sequence[Recipe], select: Select, compat: Compat) -> Plan:
    """The builds a selection needs, each with the cells it serves; a Skip for every other cell of the axes.

    The same input gives the same plan whatever the order of its parts. Skips of every extension stand first,
    then those of each extension by name; inside by torch, CUDA, Python, platform.

    Raises:
        UsageError: the selection holds something unknown or impossible.
        NothingSelectedError: no cell is left; the hints are the first reasons.

    """
    served, skips = _served(matrix, recipes, select, compat)
    builds: list[Build] = []
    for serving, cells in served:
        if isinstance(serving.recipe.source, WheelSource):
            skips += [_skip(cell, serving.recipe.name, "nothing-to-build", _PREBUILT) for cell in cells]
            continue
        groups: dict[GroupKey, list[Cell]] = defaultdict(list)
        for cell in cells:
            groups[serving.group(cell)].append(cell)
        builds += [_build(serving, key, group) for key, group in groups.items()]
    plan = Plan(tuple(builds), tuple(skips))
    if not plan.builds:
        reasons = [f"{s.reason} ({s.count} cell{'s' * (s.count > 1)})" for s in summarise_skips(plan)[:3]]
        raise NothingSelectedError("no cell is left of this selection", where=str(matrix.path), hints=reasons)
    return plan


def served_cells(
    matrix: Matrix, recipes: Sequence[Recipe], select: Select, compat: Compat
) -> list[tuple[Recipe, tuple[Cell, ...]]]:
    """The cells each selected extension is for, built or not; by name, cells sorted. Raises as `make_plan`."""
    served, _ = _served(matrix, recipes, select, compat)
    return [(serving.recipe, tuple(cells)) for serving, cells in served]


def _served(
    matrix: Matrix, recipes: Sequence[Recipe], select: Select, compat: Compat
) -> tuple[list[tuple[Serving, list[Cell]]], list[Skip]]:
    """For each extension its rules and the cells it can serve; a Skip for each of the others."""
    axes = select_axes(matrix, recipes, select, compat)
    cells, skips = _cells(matrix, axes, compat)
    served = []
    for recipe in axes.recipes:
        serving = Serving(recipe, matrix.archs, compat)
        excludes = _excludes(matrix, recipe.name)
        mine: list[Cell] = []
        for cell in cells:
            if excluded := next((e for e in excludes if _leaves_out(e, cell)), None):
                skips.append(_skip(cell, recipe.name, "excluded", excluded.reason))
            elif why := serving.why_not(cell):
                skips.append(_skip(cell, recipe.name, *why))
            else:
                mine.append(cell)
        served.append((serving, mine))
    return served, skips


def summarise_skips(plan: Plan) -> tuple[SkipSummary, ...]:
    """The plan's skips grouped by reason, in the order of their first one."""
    groups: dict[tuple[str, str], list[Skip]] = defaultdict(list)
    for skip in plan.skips:
        groups[skip.code, skip.reason].append(skip)
    return tuple(SkipSummary(code, reason, len(members), members[0]) for (code, reason), members in groups.items())


def plan_to_json(plan: Plan) -> str:
    """The plan as JSON text with a final newline: same plan, same bytes. `plan_from_json` reads it back."""
    builds = _lines(_build_to_json(build) for build in plan.builds)
    skips = _lines(_skip_to_json(skip) for skip in plan.skips)
    return f'{{"schema": {_SCHEMA},\n"builds": [{builds}],\n"skips": [{skips}]}}\n'


def plan_from_json(text: str) -> Plan:
    """Read what `plan_to_json` wrote; raises KeyError, ValueError or UsageError on anything else."""
    data = json.loads(text)
    if data["schema"] != _SCHEMA:
        raise ValueError(f"a plan of schema {data['schema']}, not {_SCHEMA}")
    return Plan(
        tuple(_build_from_json(build) for build in data["builds"]),
        tuple(_skip_from_json(skip) for skip in data["skips"]),
    )


def _cells(matrix: Matrix, axes: Axes, compat: Compat) -> tuple[list[Cell], list[Skip]]:
    """The real cells of the axes that no general exclude takes out, sorted; a Skip for each of the others."""
    cells: list[Cell] = []
    skips: list[Skip] = []
    excludes = _excludes(matrix, "")
    for torch, cuda in product(axes.torch, axes.cuda):
        impossible = compat.why_not_cuda(torch, cuda)
        for python, platform in product(axes.python, axes.platforms):
            why = impossible or compat.why_not_python(torch, python) or compat.why_not_platform(torch, cuda, platform)
            if why:
                skips.append(Skip(torch, cuda, python, "", why.code, why.reason, platform))
                continue
            cell = Cell(torch, cuda, python, platform)
            if excluded := next((e for e in excludes if _leaves_out(e, cell)), None):
                skips.append(_skip(cell, "", "excluded", excluded.reason))
            else:
                cells.append(cell)
    return cells, skips


def _excludes(matrix: Matrix, extension: str) -> list[Exclude]:
    """Those of one extension, by reason: of two that fit, the same one is named whatever their order."""
    return sorted((e for e in matrix.exclude if e.extension == extension), key=lambda e: e.reason)


def _leaves_out(exclude: Exclude, cell: Cell) -> bool:
    """Whether a cell matches every axis the exclude names (its extension is the caller's affair)."""
    return (
        exclude.torch in ("", str(cell.torch), cell.torch.series)
        and exclude.cuda in (None, cell.cuda)
        and exclude.python in (None, cell.python)
    )


def _skip(cell: Cell, extension: str, code: str, reason: str) -> Skip:
    return Skip(cell.torch, cell.cuda, cell.python, extension, code, reason, cell.platform)


def _build(serving: Serving, key: GroupKey, cells: list[Cell]) -> Build:
    torch, cuda = serving.compiled_for(cells)
    return Build(
        extension=serving.recipe.name,
        version=serving.recipe.version,
        abi=key[1],
        torch=torch,
        cuda=cuda,
        pythons=serving.pythons(cells, torch),
        archs=serving.archs(cells, cuda),
        platform=cells[0].platform,
        serves=tuple(cells),
    )


def _lines(items: Iterable[dict[str, Any]]) -> str:
    """The inside of a JSON list, one line for each item, so that `diff` shows the item that changed."""
    encode = json.JSONEncoder(ensure_ascii=False).encode
    return ",".join("\n" + encode(item) for item in items)


def _build_to_json(build: Build) -> dict[str, Any]:
    return {
        "name": str(build),
        "extension": build.extension,
        "version": build.version,
        "abi": str(build.abi),
        "torch": str(build.torch),
        "cuda": str(build.cuda),
        "pythons": [str(python) for python in build.pythons],
        "archs": [str(arch) for arch in build.archs],
        "platform": str(build.platform),
        "serves": [str(cell) for cell in build.serves],
    }


def _build_from_json(data: dict[str, Any]) -> Build:
    return Build(
        extension=data["extension"],
        version=data["version"],
        abi=AbiClass(data["abi"]),
        torch=Torch.parse(data["torch"]),
        cuda=Cuda.parse(data["cuda"]),
        pythons=tuple(map(Python.parse, data["pythons"])),
        archs=tuple(map(Arch.parse, data["archs"])),
        platform=Platform(data["platform"]),
        serves=tuple(map(Cell.parse, data["serves"])),
    )


def _skip_to_json(skip: Skip) -> dict[str, Any]:
    return {
        "torch": str(skip.torch),
        "cuda": str(skip.cuda),
        "python": str(skip.python),
        "platform": str(skip.platform),
        "extension": skip.extension,
        "code": skip.code,
        "reason": skip.reason,
    }


def _skip_from_json(data: dict[str, Any]) -> Skip:
    return Skip(
        torch=Torch.parse(data["torch"]),
        cuda=Cuda.parse(data["cuda"]),
        python=Python.parse(data["python"]),
        extension=data["extension"],
        code=data["code"],
        reason=data["reason"],
        platform=Platform(data["platform"]),
    )
