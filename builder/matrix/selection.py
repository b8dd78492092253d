"""Narrow the axes of the matrix to the values that the command line selects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, product
from typing import Any

from packaging.utils import canonicalize_name

from builder.errors import Code, NothingSelectedError, UsageError
from builder.matrix.axes import Cell, Cuda, Platform, Python, Torch, shown
from builder.matrix.compat import Compat, WhyNot, and_list, did_you_mean
from builder.matrix.config import Matrix, Recipe, Selection

#: The axes, and what each is called in a sentence. Its option is `--torch`, `--cuda` or `--python`.
_AXES = {"torch": "torch", "cuda": "CUDA", "python": "Python"}
#: For each axis, the values that each text of the command line names; a series of torch names several.
_Selected = dict[str, list[Sequence[Any]]]


@dataclass(frozen=True)
class Axes:
    """The selected part of a matrix. Every axis is sorted, without duplicates, and not empty."""

    torch: tuple[Torch, ...]
    cuda: tuple[Cuda, ...]
    python: tuple[Python, ...]
    platforms: tuple[Platform, ...]
    recipes: tuple[Recipe, ...]


def select_axes(matrix: Matrix, recipes: Sequence[Recipe], select: Selection, compat: Compat) -> Axes:
    """Narrow the matrix to a selection. A torch series selects every release of that series in the matrix.

    Raises UsageError: a value is unknown (the message names the nearest), or two values exclude each other;
    NothingSelectedError: matrix.yaml does not list a selected value, or lists no extensions.
    """
    recipes = _recipes(recipes, select.extensions)
    torch, cuda, python = select_versions(matrix, select, compat)
    return Axes(torch, cuda, python, platforms=tuple(sorted(set(matrix.platforms))), recipes=recipes)


def select_versions(
    matrix: Matrix, select: Selection, compat: Compat
) -> tuple[tuple[Torch, ...], tuple[Cuda, ...], tuple[Python, ...]]:
    """Narrow torch, CUDA and Python of the matrix to a selection. Raises what `select_axes` raises for them."""
    # Read before the matrix is: the hint to add an impossible combination to matrix.yaml would be wrong.
    selected = _read(select, compat, matrix)
    if missing := _missing(matrix, selected):
        axis = missing[0][0]
        alone = all(other == axis for other, _ in missing)
        raise NothingSelectedError(
            f"the matrix does not list {and_list(f'{_AXES[axis]} {value}' for axis, value in missing)}",
            Code.NOT_IN_MATRIX,
            where=f"{matrix.path}, `{axis}`" if alone else str(matrix.path),
            hints=[
                *(_to_add(matrix, axis, value, compat) for axis, value in missing),
                *([f"the matrix lists {and_list(sorted(getattr(matrix, axis)))}"] if alone else []),
            ],
        )
    torch, cuda, python = (_narrowed(getattr(matrix, axis), values) for axis, values in selected.items())
    return torch, cuda, python


def selected(cells: Sequence[Cell], select: Selection, compat: Compat) -> list[Cell]:
    """Return the cells that a selection names; an axis without a value selects all.

    Raises UsageError for an unknown value (the message names the nearest), and for two values that exclude each other.
    """
    values = {axis: set(chain(*groups)) for axis, groups in _read(select, compat).items() if groups}
    return [cell for cell in cells if all(getattr(cell, axis) in wanted for axis, wanted in values.items())]


def _read(select: Selection, compat: Compat, matrix: Matrix | None = None) -> _Selected:
    """Return the selected values; of a torch series, the releases in the matrix.

    Raises UsageError for an unknown value, with the option, and for two values that exclude each other.
    """
    readers: dict[str, Callable[[str], Sequence[Any]]] = {
        "torch": compat.releases,
        "cuda": lambda text: [compat.resolve_cuda(text)],
        "python": lambda text: [compat.resolve_python(text)],
    }
    found: _Selected = {axis: [] for axis in _AXES}
    for axis, read in readers.items():
        for text in getattr(select, axis):
            try:
                found[axis].append(read(text))
            except UsageError as error:
                where = f"--{axis} {shown(text)}"
                raise UsageError(error.sentence, error.code, where=where, hints=error.hints) from None
    if matrix:
        found["torch"] = [[r for r in matrix.torch if r in group] or group[-1:] for group in found["torch"]]
    whys: dict[str, Callable[[Torch, Any], WhyNot | None]] = {
        "cuda": compat.why_not_cuda,
        "python": compat.why_not_python,
    }
    for axis, why_not in whys.items():
        reasons = [why_not(*pair) for pair in product(chain(*found["torch"]), chain(*found[axis]))]
        if reasons and (first := reasons[0]) and all(reasons):
            where = " ".join(f"--{name} {text}" for name in ("torch", axis) for text in getattr(select, name))
            raise UsageError(first.reason, Code.NO_SUCH_COMBINATION, where=where)
    return found


def _missing(matrix: Matrix, selected: _Selected) -> list[tuple[str, Any]]:
    """The axis and the newest value of each selection of which the matrix lists nothing."""
    return [
        (axis, values[-1])
        for axis, groups in selected.items()
        for values in groups
        if not any(value in getattr(matrix, axis) for value in values)
    ]


def _narrowed(listed: Sequence[Any], groups: Sequence[Sequence[Any]]) -> tuple[Any, ...]:
    """Return the selected values that the matrix lists, or all values of the matrix if none is selected."""
    return tuple(sorted(set(listed).intersection(chain(*groups)) if groups else set(listed)))


def _to_add(matrix: Matrix, axis: str, value: object, compat: Compat) -> str:
    """What to add to matrix.yaml, so that it has cells of a value."""
    add = f"add {value} under `{axis}`"
    if isinstance(value, Python):
        fitting = [torch for torch in compat.torches if not compat.why_not_python(torch, value)]
        if fitting and not set(fitting) & set(matrix.torch):
            return f"{add}, and a torch that has wheels for it under `torch`, such as {fitting[-1]}"
    return add


def _recipes(recipes: Sequence[Recipe], names: Sequence[str]) -> tuple[Recipe, ...]:
    if not recipes:
        raise NothingSelectedError(
            "the matrix lists no extensions", Code.EXTENSION_UNKNOWN, hints=["add a folder under `extensions`"]
        )
    known = {recipe.name: recipe for recipe in recipes}
    alike = {canonicalize_name(name): name for name in known}
    wanted = [alike.get(canonicalize_name(name), name) for name in names]
    for name in wanted:
        if name not in known:
            raise UsageError(
                f"no extension is named {name!r}{did_you_mean(name, known)}",
                Code.EXTENSION_UNKNOWN,
                where=f"--ext {name}",
                hints=[f"the matrix has {and_list(sorted(known))}"],
            )
    return tuple(known[name] for name in sorted(set(wanted) or known))
