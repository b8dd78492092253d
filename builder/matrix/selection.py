"""Narrow the axes of the matrix to the values that the command line selects."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, TypeVar

from packaging.utils import canonicalize_name

from builder.errors import Code, NothingSelectedError, UsageError
from builder.matrix.axes import Cell, Cuda, Platform, Python, Torch, shown
from builder.matrix.compat import Compat, WhyNot, and_list, did_you_mean
from builder.matrix.config import Matrix, Recipe, Selection

Axis = TypeVar("Axis", Torch, Cuda, Python)
A = TypeVar("A")
B = TypeVar("B")


@dataclass(frozen=True)
class Axes:
    """The selected part of a matrix. Every axis is sorted, without duplicates, and not empty."""

    torch: tuple[Torch, ...]
    cuda: tuple[Cuda, ...]
    python: tuple[Python, ...]
    platforms: tuple[Platform, ...]
    recipes: tuple[Recipe, ...]


@dataclass(frozen=True)
class _Option:
    """A command-line option with its values, as text."""

    name: str
    texts: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join(f"{self.name} {text}" for text in self.texts)


def select_axes(matrix: Matrix, recipes: Sequence[Recipe], select: Selection, compat: Compat) -> Axes:
    """Narrow the matrix to a selection. A torch series selects every release of that series in the matrix.

    Raises:
        UsageError: a value is unknown (the message names the nearest), or two values exclude each other.
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
    axes = _axes(matrix, select, compat)
    _refuse_unlisted(matrix, axes)
    torch, cuda, python = (_narrowed(listed, selected) for listed, selected in axes.values())
    return torch, cuda, python


def selected(cells: Sequence[Cell], select: Selection, compat: Compat) -> list[Cell]:
    """Return the cells that a selection names; an axis without a value selects all.

    Raises UsageError for an unknown value (the message names the nearest), and for two values that exclude each other.
    """
    releases, cudas, pythons = _values(select, compat)
    return [
        cell
        for cell in cells
        if (not releases or any(cell.torch in group for group in releases))
        and (not cudas or [cell.cuda] in cudas)
        and (not pythons or [cell.python] in pythons)
    ]


def _values(
    select: Selection, compat: Compat, listed: Sequence[Torch] | None = None
) -> tuple[list[Sequence[Torch]], list[Sequence[Cuda]], list[Sequence[Python]]]:
    """Return, for each text of the command line, the values that it names; of a torch series, the releases in `listed`.

    Raises UsageError for an unknown value, and for two values that exclude each other.
    """
    torch_option, cuda_option = _Option("--torch", select.torch), _Option("--cuda", select.cuda)
    python_option = _Option("--python", select.python)
    torch: list[Sequence[Torch]] = [*_read(torch_option, compat.releases)]
    if listed is not None:
        torch = [[r for r in listed if r in releases] or releases[-1:] for releases in torch]
    cuda = [[value] for value in _read(cuda_option, compat.resolve_cuda)]
    python = [[value] for value in _read(python_option, compat.resolve_python)]
    _refuse_impossible(torch_option, torch, cuda_option, cuda, compat.why_not_cuda)
    _refuse_impossible(torch_option, torch, python_option, python, compat.why_not_python)
    return torch, [*cuda], [*python]


def _read(option: _Option, read: Callable[[str], A]) -> list[A]:
    """Parse the values of an option; an error names the option."""
    values = []
    for text in option.texts:
        try:
            values.append(read(text))
        except UsageError as error:
            raise UsageError(
                error.sentence, error.code, where=f"{option.name} {shown(text)}", hints=error.hints
            ) from None
    return values


def _recipes(recipes: Sequence[Recipe], names: Sequence[str]) -> tuple[Recipe, ...]:
    if not recipes:
        raise NothingSelectedError(
            "the matrix lists no extensions", Code.NO_EXTENSION, hints=["add a folder under `extensions`"]
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


#: What an axis is called in a sentence.
_NAMES = {"torch": "torch", "cuda": "CUDA", "python": "Python"}

_ListedAndSelected = Mapping[str, tuple[Sequence[Any], Sequence[Sequence[Any]]]]


def _axes(matrix: Matrix, select: Selection, compat: Compat) -> _ListedAndSelected:
    """What the matrix lists of each axis, and what is selected of it. Raises UsageError as `_values`."""
    torch, cuda, python = _values(select, compat, matrix.torch)
    return {"torch": (matrix.torch, torch), "cuda": (matrix.cuda, cuda), "python": (matrix.python, python)}


def _refuse_unlisted(matrix: Matrix, axes: _ListedAndSelected) -> None:
    """Raise NothingSelectedError for the selected values of which the matrix lists none; `axes` has both, by name."""
    if not (missing := _missing(axes)):
        return
    first, _, listed = missing[0]
    alone = all(axis == first for axis, _, _ in missing)
    raise NothingSelectedError(
        f"the matrix does not list {and_list([f'{_NAMES[axis]} {value}' for axis, value, _ in missing])}",
        Code.NOT_IN_MATRIX,
        where=f"{matrix.path}, `{first}`" if alone else str(matrix.path),
        hints=[
            *(_to_add(matrix, axis, value) for axis, value, _ in missing),
            *([f"the matrix lists {and_list(sorted(listed))}"] if alone else []),
        ],
    )


def _missing(axes: _ListedAndSelected) -> list[tuple[str, Any, Sequence[Any]]]:
    """The axis and the newest value of each selection of which the matrix lists nothing, and what it lists."""
    return [
        (axis, values[-1], listed)
        for axis, (listed, selected) in axes.items()
        for values in selected
        if not any(value in listed for value in values)
    ]


def additions(matrix: Matrix, select: Selection, compat: Compat) -> list[str]:
    """What to add to matrix.yaml, so that it has every selected value: `add 2.12.1 under `torch``; empty: nothing."""
    return [_to_add(matrix, axis, value) for axis, value, _ in _missing(_axes(matrix, select, compat))]


def _narrowed(listed: Sequence[Axis], selected: Sequence[Sequence[Axis]]) -> tuple[Axis, ...]:
    """Return the selected values that the matrix lists, or all values of the matrix if none is selected."""
    wanted = {value for values in selected for value in values}
    return tuple(sorted(value for value in set(listed) if value in wanted or not selected))


def _to_add(matrix: Matrix, axis: str, value: Axis) -> str:
    """What to add to matrix.yaml, so that it has cells of a value."""
    add, compat = f"add {value} under `{axis}`", Compat.load()
    if isinstance(value, Python):
        fitting = [torch for torch in compat.torches if not compat.why_not_python(torch, value)]
        if fitting and not set(fitting) & set(matrix.torch):
            return f"{add}, and a torch that has wheels for it under `torch`, such as {fitting[-1]}"
    return add


def _refuse_impossible(
    option_a: _Option,
    values_a: Sequence[Sequence[A]],
    option_b: _Option,
    values_b: Sequence[Sequence[B]],
    why_not: Callable[[A, B], WhyNot | None],
) -> None:
    """Raise UsageError if every value of one option excludes every value of the other."""
    pairs = product((a for group in values_a for a in group), (b for group in values_b for b in group))
    reasons = [why_not(a, b) for a, b in pairs]
    if reasons and (first := reasons[0]) and all(reasons):
        raise UsageError(first.reason, Code.NO_SUCH_COMBINATION, where=f"{option_a} {option_b}")
