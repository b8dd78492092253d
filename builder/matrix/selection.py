"""What the command line asks for, held against the matrix: the axes that are left, or why there is none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import product
from typing import TypeVar

from builder.errors import NothingSelectedError, UsageError
from builder.matrix.axes import Cuda, Platform, Python, Torch
from builder.matrix.compat import Compat, WhyNot, and_list
from builder.matrix.config import Matrix, Recipe, Select

Axis = TypeVar("Axis", Torch, Cuda, Python)
A = TypeVar("A")
B = TypeVar("B")


@dataclass(frozen=True)
class Axes:
    """The part of a matrix that is selected; every axis sorted and without repeats, none of them empty."""

    torch: tuple[Torch, ...]
    cuda: tuple[Cuda, ...]
    python: tuple[Python, ...]
    platforms: tuple[Platform, ...]
    recipes: tuple[Recipe, ...]


@dataclass(frozen=True)
class _Asked:
    """One axis as the command line gave it."""

    option: str
    texts: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join(f"{self.option} {text}" for text in self.texts)


def select_axes(matrix: Matrix, recipes: Sequence[Recipe], select: Select, compat: Compat) -> Axes:
    """Narrow the matrix to a selection.

    A torch series takes every release of it in the matrix; a release takes itself.

    Raises:
        UsageError: a value nobody knows (with the nearest), or two values that never go together.
        NothingSelectedError: a real value that matrix.yaml does not list, or a matrix without extensions.

    """
    chosen = _recipes(recipes, select.extensions)
    asked_torch = _Asked("--torch", select.torch)
    asked_cuda = _Asked("--cuda", select.cuda)
    asked_python = _Asked("--python", select.python)
    known = _read(asked_torch, compat.releases)
    torch = [[r for r in matrix.torch if r in releases] or [releases[-1]] for releases in known]
    cuda = [[value] for value in _read(asked_cuda, compat.resolve_cuda)]
    python = [[value] for value in _read(asked_python, compat.resolve_python)]
    # Before the matrix is asked: to add a pair that cannot be would not help.
    _refuse_impossible(asked_torch, torch, asked_cuda, cuda, compat.why_not_cuda)
    _refuse_impossible(asked_torch, torch, asked_python, python, compat.why_not_python)
    return Axes(
        torch=_listed(matrix, "torch", matrix.torch, torch),
        cuda=_listed(matrix, "cuda", matrix.cuda, cuda),
        python=_listed(matrix, "python", matrix.python, python),
        platforms=tuple(sorted(set(matrix.platforms))),
        recipes=chosen,
    )


def _read(asked: _Asked, read: Callable[[str], A]) -> list[A]:
    """Each text of an option as a value; an error names the option."""
    values = []
    for text in asked.texts:
        try:
            values.append(read(text))
        except UsageError as error:
            raise UsageError(error.sentence, where=f"{asked.option} {text}", hints=error.hints) from None
    return values


def _recipes(recipes: Sequence[Recipe], names: Sequence[str]) -> tuple[Recipe, ...]:
    if not recipes:
        raise NothingSelectedError("the matrix lists no extensions", hints=["add a folder under `extensions`"])
    known = {recipe.name: recipe for recipe in recipes}
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            raise UsageError(
                f"no extension is named {name!r}" + (f"; did you mean `{near[0]}`?" if near else ""),
                where=f"--ext {name}",
                hints=[f"the matrix has {and_list(sorted(known))}"],
            )
    return tuple(known[name] for name in sorted(set(names) or known))


def _listed(matrix: Matrix, axis: str, have: Sequence[Axis], asked: Sequence[Sequence[Axis]]) -> tuple[Axis, ...]:
    """The asked values that the matrix lists; all of the matrix when nothing is asked."""
    for values in asked:
        if not any(value in have for value in values):
            raise NothingSelectedError(
                f"the matrix does not list {axis} {values[-1]}",
                where=f"{matrix.path}, `{axis}`",
                hints=[f"add {values[-1]} under `{axis}` there", f"it lists {and_list(sorted(have))}"],
            )
    wanted = {value for values in asked for value in values}
    return tuple(sorted(value for value in set(have) if value in wanted or not asked))


def _refuse_impossible(
    asked_a: _Asked,
    values_a: Sequence[Sequence[A]],
    asked_b: _Asked,
    values_b: Sequence[Sequence[B]],
    why_not: Callable[[A, B], WhyNot | None],
) -> None:
    """Refuse two options when no value of the one goes with any value of the other."""
    pairs = product((a for group in values_a for a in group), (b for group in values_b for b in group))
    reasons = [why_not(a, b) for a, b in pairs]
    if reasons and (first := reasons[0]) and all(reasons):
        raise UsageError(first.reason, where=f"{asked_a} {asked_b}")
