"""Properties of every plan, for generated matrices and recipes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product
from random import Random
from typing import TypeVar

from hypothesis import given, settings
from hypothesis import strategies as st

from builder.errors import NothingSelectedError
from builder.matrix.axes import AbiClass, Cell, Platform
from builder.matrix.compat import Compat
from builder.matrix.config import Exclude, Matrix, Recipe, Selection
from builder.matrix.plan import Plan, make_plan
from tests.unit.matrix.make import matrix, recipe

T = TypeVar("T")
COMPAT = Compat.load()
torches = st.sampled_from(COMPAT.torches)
cudas = st.sampled_from(COMPAT.cudas)
pythons = st.sampled_from(COMPAT.pythons)
archs = st.sampled_from(["3.7", "7.0", "8.0", "9.0a", "9.0+PTX", "12.0", "12.0f"])
specifiers = st.sampled_from(["", ">=2.10", "<2.10", ">=2.5,<2.12", "==2.11.*"])
few_archs = st.lists(archs, max_size=2)


@st.composite
def recipes(draw: st.DrawFn, name: str) -> Recipe:
    rules = draw(st.lists(st.tuples(st.sampled_from(AbiClass), specifiers), min_size=1, max_size=3))
    python = draw(st.sampled_from(["", ">=3.10", "<3.13"]))
    return recipe(name, *rules, archs=draw(few_archs), python=python)


@st.composite
def excludes(draw: st.DrawFn) -> Exclude:
    torch = draw(torches)
    return Exclude(
        reason=draw(st.sampled_from(["slow", "broken"])),
        torch=draw(st.sampled_from([str(torch), torch.series])),
        cuda=draw(st.none() | cudas),
        python=draw(st.none() | pythons),
        extension=draw(st.sampled_from(["", "a", "b"])),
    )


@st.composite
def requests(draw: st.DrawFn) -> tuple[Matrix, list[Recipe]]:
    base = matrix([], [], [], archs=draw(few_archs), exclude=draw(st.lists(excludes(), max_size=3)))
    request = replace(
        base,
        torch=tuple(draw(st.lists(torches, min_size=1, max_size=6))),
        cuda=tuple(draw(st.lists(cudas, min_size=1, max_size=5))),
        python=tuple(draw(st.lists(pythons, min_size=1, max_size=4))),
        platforms=tuple(draw(st.lists(st.sampled_from(Platform), min_size=1, max_size=2))),
    )
    return request, [draw(recipes(name)) for name in ("a", "b")]


def plan_or_none(request: Matrix, recipes: list[Recipe]) -> Plan | None:
    try:
        return make_plan(request, recipes, Selection(), COMPAT)
    except NothingSelectedError as error:
        assert error.hints  # noqa: PT017  # the reasons are the point
        return None


@given(requests())
@settings(deadline=None)
def test_every_combination_is_served_once_or_skipped_once(request: tuple[Matrix, list[Recipe]]) -> None:
    plan = plan_or_none(*request)
    if plan is None:
        return
    axes, recipes = request
    combinations = {Cell(*c) for c in product(axes.torch, axes.cuda, axes.python, axes.platforms)}
    for extension in (r.name for r in recipes):
        found = Counter(cell for b in plan.builds if b.extension == extension for cell in b.serves)
        found.update(Cell(s.torch, s.cuda, s.python, s.platform) for s in plan.skips if s.extension in ("", extension))
        assert found == Counter(combinations)


@given(requests(), st.randoms(use_true_random=False))
@settings(deadline=None)
def test_the_order_of_the_input_does_not_matter(request: tuple[Matrix, list[Recipe]], random: Random) -> None:
    plan = plan_or_none(*request)
    axes, recipes = request

    def shuffled(items: tuple[T, ...]) -> tuple[T, ...]:
        return tuple(random.sample(items, len(items)))

    other = replace(
        axes,
        torch=shuffled(axes.torch),
        cuda=shuffled(axes.cuda),
        python=shuffled(axes.python),
        archs=shuffled(axes.archs),
        platforms=shuffled(axes.platforms),
        exclude=shuffled(axes.exclude),
    )
    assert plan_or_none(other, recipes[::-1]) == plan


@given(requests())
@settings(deadline=None)
def test_every_build_is_possible_and_fits_the_cells_it_serves(request: tuple[Matrix, list[Recipe]]) -> None:
    plan = plan_or_none(*request)
    for build in plan.builds if plan else ():
        assert build.archs
        assert not [arch for arch in build.archs if COMPAT.why_not_arch(build.cuda, arch)]
        assert not [arch for arch in build.archs if COMPAT.why_not_listed(build.torch, arch)]
        assert build.pythons
        for python in build.pythons:
            assert COMPAT.why_not(build.torch, build.cuda, python, build.platform) is None
        assert list(build.serves) == sorted(build.serves)
        assert build.torch == build.serves[0].torch
        for cell in build.serves:
            assert (cell.platform, cell.cuda.major) == (build.platform, build.cuda.major)
            if build.abi is not AbiClass.STABLE:
                assert (cell.torch.series, cell.cuda) == (build.torch.series, build.cuda)
            if build.abi is AbiClass.CPYTHON:
                assert (cell.python,) == build.pythons
            else:
                assert not cell.python.free_threaded
    names = [str(build) for build in plan.builds] if plan else []
    assert len(names) == len(set(names))
