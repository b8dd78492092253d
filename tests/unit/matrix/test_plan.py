"""The plan: builds, served cells, reasons of skips, and what is true of every plan."""

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

from builder.commands.plan import plan_to_json
from builder.errors import Code, NothingSelectedError
from builder.matrix.axes import AbiClass, Arch, Cell, Cuda, Platform, Python
from builder.matrix.compat import Compat
from builder.matrix.config import Exclude, Matrix, Recipe, Selection, WheelSource
from builder.matrix.plan import Plan, make_plan, served_cells, summarise_skips
from tests.refused import refused
from tests.unit.matrix.make import matrix, recipe

CPYTHON, ABI3, STABLE = AbiClass.CPYTHON, AbiClass.ABI3, AbiClass.STABLE
SHIPPED = ("11.8", "12.1", "12.4", "12.6", "12.8", "12.9", "13.0", "13.2")


def planned(m: Matrix, *recipes: Recipe, select: Selection | None = None) -> Plan:
    return make_plan(m, recipes, select or Selection(), Compat.load())


def builds(plan: Plan) -> list[str]:
    """Return each build as one line: name, architectures, Pythons, cells."""
    parts = [(str(b), spaced(b.archs), " ".join(p.tag for p in b.pythons), spaced(b.serves)) for b in plan.builds]
    return [" | ".join(part) for part in parts]


def spaced(items: Sequence[object]) -> str:
    return " ".join(map(str, items))


def skips(plan: Plan) -> list[str]:
    return [f"{len(s.cells)} {s.code}: {s.reason}" for s in summarise_skips(plan)]


def test_cpython_one_build_for_each_series_cuda_and_python() -> None:
    plan = planned(matrix(["2.2"], ["11.8", "12.1", "13.0"], ["3.12", "3.13"]), recipe())
    assert builds(plan) == [
        "ext-1.0-cpython-torch2.2.2-cu118-cp312 | 3.7 5.0 6.0 7.0 7.5 8.0 8.6 9.0 | cp312 | torch2.2.2-cu118-cp312",
        "ext-1.0-cpython-torch2.2.2-cu121-cp312 | 5.0 6.0 7.0 7.5 8.0 8.6 9.0 | cp312 | torch2.2.2-cu121-cp312",
    ]
    assert skips(plan) == [
        "2 no-torch-wheel-for-python: torch 2.2 has no wheel for Python 3.13; its newest is 3.12",
        "2 no-torch-wheel-for-cuda: torch 2.2 was never built for CUDA 13.0; it has 11.8 and 12.1",
    ]


def test_numbers_of_the_cell_in_the_name_of_the_wheel() -> None:
    named = replace(recipe("ops", (STABLE, "")), pattern="ops-cu{cuda_major}")
    other = replace(recipe("others"), pattern="others-cu{cuda}-torch{torch}")
    plan = planned(matrix(torch=["2.11"], cuda=["12.6", "13.0"], python=["3.12"]), named, other)
    names = {build.wheel_name for build in plan.builds}
    assert names == {"ops-cu12", "ops-cu13", "others-cu126-torch211", "others-cu130-torch211"}
    assert '"project": "ops-cu13"' in plan_to_json(plan)


def test_numbers_of_the_cell_in_the_version_of_the_wheel() -> None:
    stable = replace(recipe("ops", (STABLE, "")), version="1.0.post0", version_pattern="1.0.post{cuda_major}")
    other = replace(recipe("others"), version="1.0.0", version_pattern="1.{torch}.{cuda}")
    plan = planned(matrix(torch=["2.11"], cuda=["12.6", "13.0"], python=["3.12"]), stable, other)
    assert {build.version for build in plan.builds} == {"1.0.post12", "1.0.post13", "1.211.126", "1.211.130"}
    assert all(stable.is_version(Version(text)) for text in ("1.0.post12+cu12", "1.post13"))
    assert not any(stable.is_version(Version(text)) for text in ("1.0", "1.1.post13", "1.0.post13.dev1"))


GONE = Exclude("gone", torch="2.11", cuda=Cuda(12, 6))
PYTHONS = ["3.10", "3.12", "3.13", "3.14"]
RULES = ((STABLE, ">=2.10"), (ABI3, ">=2.8"), (CPYTHON, ">=2.7"))


@pytest.mark.parametrize(
    ("axes", "rules", "expected"),
    [
        pytest.param(
            matrix(["2.2.2", "2.2.0", "2.2.1"], ["12.1"], ["3.12"]),
            (),
            "cpython-torch2.2.0-cu121-cp312 3",
            id="patch releases",
        ),
        pytest.param(
            matrix(["2.10", "2.11"], ["13.0"], PYTHONS),
            ((ABI3, ""),),
            "abi3-torch2.10.0-cu130-py3 4, abi3-torch2.11.0-cu130-py3 4",
            id="abi3: every Python",
        ),
        pytest.param(
            matrix(["2.11", "2.12"], ["12.6", "12.8"], ["3.12"]),
            ((STABLE, ""),),
            "stable-torch2.11.0-cu126-py3 3",
            id="stable: the oldest CUDA of the oldest torch",
        ),
        pytest.param(
            matrix(["2.11", "2.12"], ["12.6", "12.8"], ["3.12"], exclude=[GONE]),
            ((STABLE, ""),),
            "stable-torch2.11.0-cu128-py3 2",
            id="stable: only a newer torch has the oldest CUDA",
        ),
        pytest.param(
            matrix(["2.10"], ["12.6", "12.8"], ["3.12"], archs=["12.0"]),
            ((STABLE, ""),),
            "stable-torch2.10.0-cu128-py3 1",
            id="stable: a toolkit lacks the architecture",
        ),
        pytest.param(
            matrix(["2.6", "2.7", "2.9", "2.11"], ["12.6"], ["3.12"]),
            RULES,
            "cpython-torch2.7.1-cu126-cp312 1, abi3-torch2.9.1-cu126-py3 1, stable-torch2.11.0-cu126-py3 1",
            id="the first rule",
        ),
    ],
)
def test_what_one_build_serves(axes: Matrix, rules: Sequence[tuple[AbiClass, str]], expected: str) -> None:
    """Each build without the name of the extension, and the number of its cells."""
    plan = planned(axes, recipe("ext", *rules))
    assert ", ".join(f"{str(b).removeprefix('ext-1.0-')} {len(b.serves)}" for b in plan.builds) == expected


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
    assert "6 no-abi-rule-for-torch: ext is not for torch 2.9: its abi rules take >=2.10" in skips(plan)


@pytest.mark.parametrize("abi", [ABI3, STABLE])
def test_python_3_15_compiles_only_what_no_older_python_can(abi: AbiClass) -> None:
    for pythons, first in ((["3.15", "3.14", "3.13"], "cp313"), (["3.15", "3.14"], "cp314"), (["3.15"], "cp315")):
        (build,) = planned(matrix(["2.15"], ["13.2"], pythons), recipe("ext", (abi, ""))).builds
        assert build.pythons[0].tag == first


@pytest.mark.parametrize(
    ("matrix_archs", "recipe_archs", "archs", "reasons"),
    [
        (["9.0", "12.0+PTX"], [], {"cu128": "9.0 12.0+PTX", "cu126": ""}, ["CUDA 12.6 cannot compile for sm_120; "]),
        (["12.0"], ["9.0", "8.0"], {"cu126": "8.0 9.0", "cu128": "8.0 9.0"}, []),
        ([], ["10.3"], {"cu129": "10.3"}, [f"CUDA {cuda} cannot compile for sm_103; " for cuda in ("12.6", "12.8")]),
        (["9.0", "9.0+PTX"], [], {"cu126": "9.0+PTX"}, []),
    ],
    ids=["matrix", "recipe-beats-matrix", "recipe", "ptx-means-both"],
)
def test_architectures_of_matrix_and_recipe(
    matrix_archs: Sequence[str], recipe_archs: Sequence[str], archs: dict[str, str], reasons: list[str]
) -> None:
    m = matrix(["2.8"], ["12.6", "12.8", "12.9"], ["3.12"], archs=matrix_archs)
    plan = planned(m, recipe(archs=recipe_archs))
    got = {b.cuda.variant: spaced(b.archs) for b in plan.builds}
    assert {variant: got.get(variant, "") for variant in archs} == archs
    for skip, reason in zip(summarise_skips(plan), reasons, strict=True):
        assert skip.code == "arch-unknown-to-toolkit"
        assert skip.reason.startswith(reason)
        assert ("(required by the recipe of ext)" in skip.reason) is bool(recipe_archs)


def test_an_architecture_that_torch_refuses_is_for_nvcc_alone() -> None:
    m = matrix(["2.8", "2.10"], ["12.8"], ["3.12"], archs=["10.1"])
    plan = planned(m, recipe())
    assert ([str(build.torch) for build in plan.builds], [skip.code for skip in plan.skips]) == (
        ["2.8.0"],
        ["arch-refused-by-torch"],
    )
    plan = planned(m, replace(recipe(), override_architectures=True))
    assert [str(build.torch) for build in plan.builds] == ["2.8.0", "2.10.0"]


def test_excluded_cells_have_the_reason_of_the_exclude() -> None:
    slow = Exclude("too slow", extension="one", python=Python(3, 13))
    excluded = [slow, Exclude("broken", torch="2.12"), Exclude("other", torch="2.11.1")]
    m = matrix(["2.11", "2.12"], ["13.0"], ["3.12", "3.13"], exclude=excluded)
    plan = planned(m, recipe("two"), recipe("one"))
    assert [str(b) for b in plan.builds] == [
        "one-1.0-cpython-torch2.11.0-cu130-cp312",
        "two-1.0-cpython-torch2.11.0-cu130-cp312",
        "two-1.0-cpython-torch2.11.0-cu130-cp313",
    ]
    assert [(str(s.torch), str(s.python), s.extension, s.code, s.reason) for s in plan.skips] == [
        ("2.12.1", "3.12", "", "excluded", "broken"),
        ("2.12.1", "3.13", "", "excluded", "broken"),
        ("2.11.0", "3.13", "one", "excluded", "too slow"),
    ]


def test_platforms_make_separate_cells() -> None:
    m = matrix(["2.10", "2.12"], ["13.0"], ["3.12"], platforms=list(Platform))
    plan = planned(m, recipe("ext", (STABLE, "")))
    assert [(str(b), " ".join(map(str, b.archs))) for b in plan.builds] == [
        ("ext-1.0-stable-torch2.10.0-cu130-py3", "7.5 8.0 8.6 9.0 10.0 12.0+PTX"),
        ("ext-1.0-stable-torch2.12.1-cu130-py3-linux_aarch64", "8.0 9.0 10.0 11.0 12.0"),
    ]
    assert [(s.platform, s.reason) for s in plan.skips] == [
        (Platform.LINUX_AARCH64, "buildfarm's version table lists no torch 2.10 wheel for CUDA 13.0 on linux_aarch64")
    ]


@pytest.mark.parametrize(
    ("select", "cells"),
    [
        (Selection(torch=("2.2",)), ["torch2.2.0-cu121-cp312", "torch2.2.2-cu121-cp312"]),
        (Selection(torch=("2.2.0",)), ["torch2.2.0-cu121-cp312"]),
        (Selection(cuda=("13.0",)), ["torch2.11.0-cu130-cp312", "torch2.11.0-cu130-cp313"]),
        (Selection(cuda=("cu130",), python=("cp313",)), ["torch2.11.0-cu130-cp313"]),
        (Selection(torch=("2.2.0", "2.11"), python=("3.12",)), ["torch2.11.0-cu130-cp312", "torch2.2.0-cu121-cp312"]),
        (Selection(torch=("2.2.0", "2.11"), cuda=("13.0",), python=("3.12",)), ["torch2.11.0-cu130-cp312"]),
    ],
    ids=["series", "release", "cuda", "tags", "several", "one-pair-can-be"],
)
def test_select(select: Selection, cells: list[str]) -> None:
    m = matrix(["2.2.0", "2.2.2", "2.11"], ["12.1", "13.0"], ["3.12", "3.13"])
    plan = planned(m, recipe(), select=select)
    assert sorted(str(cell) for build in plan.builds for cell in build.serves) == cells


def test_names_of_extensions_are_compared_as_python_does() -> None:
    m = matrix(["2.11"], ["13.0"], ["3.12"])
    plan = planned(m, recipe("one"), recipe("my_ext"), select=Selection(extensions=("My-Ext",)))
    assert [build.extension for build in plan.builds] == ["my_ext"]


def test_an_official_wheel_has_cells_and_no_build() -> None:
    m = matrix(["2.11", "2.13"], ["13.0"], ["3.12", "3.13"])
    official = replace(recipe("official", (CPYTHON, "==2.11.*")), source=WheelSource("official", "0.26.0"))
    plan = planned(m, recipe("one"), official)
    assert {build.extension for build in plan.builds} == {"one"}
    assert [s.code for s in plan.skips if s.extension == "official" and s.torch.minor == 11] == ["nothing-to-build"] * 2
    assert "`buildfarm smoke` tests this wheel" in " ".join(skips(plan))
    served = served_cells(m, [official], Selection(), Compat.load())
    assert [(r.name, spaced(cells)) for r, cells in served] == [
        ("official", "torch2.11.0-cu130-cp312 torch2.11.0-cu130-cp313")
    ]


def test_what_a_recipe_says_comes_first() -> None:
    axes = matrix(["2.2", "2.5", "2.11"], ["11.8", "12.1", "13.0"], ["3.12", "3.13"])
    with refused(Code.NO_CELL_LEFT) as caught:
        planned(axes, recipe(python="<3.10"))
    first = caught.value.hints[0]
    assert first.startswith("ext: ")
    assert "Python" in first


def test_a_reason_names_every_extension_that_it_is_about_and_counts_cells_once() -> None:
    axes = replace(matrix(["2.11"], ["13.0"], ["3.12"]), archs=(Arch.parse("1.5"),))
    with refused(Code.NO_CELL_LEFT) as caught:
        planned(axes, *map(recipe, ("a", "b", "c", "d", "e")))
    (hint,) = caught.value.hints
    assert hint.startswith("a, b, c and 2 more: ")
    assert hint.endswith("(1 cell)")


def test_a_matrix_without_extensions() -> None:
    with refused(Code.EXTENSION_UNKNOWN):
        planned(matrix(["2.11"], ["13.0"], ["3.12"]))


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
        found.update(Cell(s.torch, s.cuda, s.python, s.platform) for s in plan.skips if s.extension in ("", extension))
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
            else:
                assert not cell.python.free_threaded
    names = [str(build) for build in plan.builds]
    assert len(names) == len(set(names))
