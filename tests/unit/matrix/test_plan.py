"""What is true of every plan; tests/unit/transcripts/plan.txt has the builds, the cells and the reasons of examples."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from random import Random
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.version import Version

from builder.errors import NothingSelectedError
from builder.matrix.axes import AbiClass, Cell, Platform, Python
from builder.matrix.compat import Compat
from builder.matrix.config import Exclude, Matrix, Recipe, Selection, WheelSource
from builder.matrix.plan import Plan, make_plan, served_cells
from tests.unit.matrix.make import matrix, recipe

CPYTHON, ABI3, STABLE = AbiClass.CPYTHON, AbiClass.ABI3, AbiClass.STABLE
SHIPPED = ("11.8", "12.1", "12.4", "12.6", "12.8", "12.9", "13.0", "13.2")


def planned(m: Matrix, *recipes: Recipe, select: Selection | None = None) -> Plan:
    return make_plan(m, recipes, select or Selection(), Compat.load())


def spaced(items: Sequence[object]) -> str:
    return " ".join(map(str, items))


def test_versions_with_numbers_of_the_cell_are_of_the_recipe() -> None:
    stable = replace(recipe("ops", (STABLE, "")), version="1.0.post0", version_pattern="1.0.post{cuda_major}")
    assert all(stable.is_version(Version(text)) for text in ("1.0.post12+cu12", "1.post13"))
    assert not any(stable.is_version(Version(text)) for text in ("1.0", "1.1.post13", "1.0.post13.dev1"))


def test_an_official_wheel_has_cells() -> None:
    m = matrix(["2.11", "2.13"], ["13.0"], ["3.12", "3.13"])
    official = replace(recipe("official", (CPYTHON, "==2.11.*")), source=WheelSource("official", "0.26.0"))
    served = served_cells(m, [official], Selection(), Compat.load())
    assert [(r.name, spaced(cells)) for r, cells in served] == [
        ("official", "torch2.11.0-cu130-cp312 torch2.11.0-cu130-cp313")
    ]


@pytest.mark.parametrize(
    ("pythons", "rule", "expected"),
    [
        (["3.14", "3.14t", "3.15", "3.15t"], (STABLE, "", True), "py3 1, stable-torch2.15.0-cu132-cp315t 2"),
        (["3.14", "3.15"], (ABI3, "", True), "py3 2"),
    ],
    ids=["Python 3.15 with and without a GIL", "no Python needs it"],
)
def test_one_more_build_for_abi3t(pythons: list[str], rule: tuple[AbiClass, str, bool], expected: str) -> None:
    """Each build with the number of its cells."""
    plan = planned(matrix(["2.15"], ["13.2"], pythons), recipe("ext", rule))
    built = ", ".join(f"{str(b).removeprefix('ext-1.0-')} {len(b.serves)}" for b in plan.builds)
    assert built == f"{rule[0]}-torch2.15.0-cu132-{expected}"


def test_stable_one_build_for_each_cuda_major() -> None:
    m = matrix(["2.9", "2.10", "2.11", "2.12", "2.15"], SHIPPED, ["3.10", "3.12", "3.15"])
    plan = planned(m, recipe("ext", (STABLE, ">=2.10")))
    assert [(str(b), b.local_version, " ".join(map(str, b.archs))) for b in plan.builds] == [
        ("ext-1.0-stable-torch2.10.0-cu126-py3", "cu12", "5.0 6.0 7.0 7.5 8.0 8.6 9.0+PTX"),
        ("ext-1.0-stable-torch2.10.0-cu130-py3", "cu13", "7.5 8.0 8.6 9.0 10.0 12.0+PTX"),
    ]
    cuda12, cuda13 = plan.builds
    pairs = ("2.10.0-cu126", "2.10.0-cu128", "2.11.0-cu126", "2.11.0-cu128", "2.12.1-cu126")
    assert spaced(cuda12.serves) == spaced([f"torch{pair}-{tag}" for pair in pairs for tag in ("cp310", "cp312")])
    assert "torch2.15.0-cu132-cp315" in map(str, cuda13.serves)
    # cp315 is served, yet torch 2.10 cannot be had for it, so the build cannot use it.
    assert cuda13.pythons == (Python(3, 12), Python(3, 10))


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
    rules = draw(st.lists(st.tuples(st.sampled_from(AbiClass), specifiers, st.booleans()), min_size=1, max_size=3))
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


#: What a request lists, in any order.
AXES = ("torch", "cuda", "python", "archs", "platforms", "exclude")


def plan_or_none(request: Matrix, recipes: list[Recipe]) -> Plan | None:
    try:
        return make_plan(request, recipes, Selection(), COMPAT)
    except NothingSelectedError as error:
        assert error.hints  # noqa: PT017  # the reasons are the point
        return None


@given(requests(), st.randoms(use_true_random=False))
@settings(deadline=None)
def test_a_plan_is_whole_and_possible_and_has_no_order(request: tuple[Matrix, list[Recipe]], random: Random) -> None:
    """Each combination is served once or skipped once; a build fits the cells that it serves."""
    axes, recipes = request
    plan = plan_or_none(axes, recipes)
    changed: dict[str, Any] = {
        name: tuple(random.sample(values, len(values))) for name in AXES if (values := getattr(axes, name))
    }
    assert plan_or_none(replace(axes, **changed), recipes[::-1]) == plan
    if plan is None:
        return
    combinations = {Cell(*c) for c in product(axes.torch, axes.cuda, axes.python, axes.platforms)}
    for extension in (r.name for r in recipes):
        found = Counter(cell for b in plan.builds if b.extension == extension for cell in b.serves)
        found.update(s.cell for s in plan.skips if s.extension in ("", extension))
        assert found == Counter(combinations)
    for build in plan.builds:
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
            elif build.pythons[0].free_threaded:
                assert cell.python >= Python(3, 15)
            else:
                assert not cell.python.free_threaded
    names = [str(build) for build in plan.builds]
    assert len(names) == len(set(names))
