"""What is true of every plan and of the names in it; tests/unit/transcripts/plan.txt has examples with reasons."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from random import Random
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.version import Version

from builder.errors import NothingSelectedError, UsageError
from builder.matrix.axes import AbiClass, Arch, Cell, Cuda, Platform, Python, Torch
from builder.matrix.compat import Compat
from builder.matrix.config import Exclude, Matrix, Recipe, Selection, WheelSource
from builder.matrix.local_version import LocalVersion, current_form, read_local
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


any_torch = st.builds(Torch, st.integers(1, 9), st.integers(0, 99), st.integers(0, 99))
any_cuda = st.builds(Cuda, st.integers(1, 99), st.integers(0, 9))
any_python = st.builds(Python, st.just(3), st.integers(6, 99), st.booleans())
any_arch = st.builds(Arch, st.integers(1, 99), st.integers(0, 9), st.sampled_from(["", "a", "f"]), st.booleans())
any_cell = st.builds(Cell, any_torch, any_cuda, any_python, st.sampled_from(Platform))


@given(st.one_of(any_torch, any_cuda, any_python, any_arch, any_cell))
def test_names_round_trip(value: Torch | Cuda | Python | Arch | Cell) -> None:
    assert type(value).parse(str(value)) == value


@pytest.mark.parametrize(
    ("parse", "text", "sentence"),
    [
        pytest.param(Torch.parse, "2.11", "'2.11' is not a torch release; write it like 2.11.0", id="torch"),
        pytest.param(Cell.parse, "x", "'x' is not a cell; write it like torch2.11.0-cu130-cp312", id="cell"),
        pytest.param(
            Cell.parse,
            "torch2.11.0-cu130-cp312-win",
            "'win' is not a platform; the platforms are linux_x86_64, linux_aarch64",
            id="platform",
        ),
    ],
)
def test_an_unreadable_name_is_an_error(parse: Callable[[str], object], text: str, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(text)
    assert caught.value.sentence == sentence


@pytest.mark.parametrize("parse", [Torch.parse, Compat.load().resolve_torch, Cuda.parse, Python.parse, Arch.parse])
@pytest.mark.parametrize("form", ["{}", "3.{}", "2.11.{}", "cu{}0", "cp3{}", "{}.0"])
def test_a_number_with_more_digits_than_python_converts(parse: Callable[[str], object], form: str) -> None:
    with pytest.raises(UsageError, match=r"9999…' is not a .*; write it like") as refused:
        parse(form.format("9" * 5000))
    assert len(str(refused.value)) < 150


(BUILD,) = make_plan(
    matrix(["2.11"], ["13.0"], ["3.12"]), [recipe("ext", (AbiClass.CPYTHON, ""))], Selection(), Compat.load()
).builds

#: Local version → series of torch, CUDA, and who writes it.
FORMS = [
    ("cu130.torch2.11", "2.11", "cu130", "buildfarm"),
    ("git7.cu130.torch2.11", "2.11", "cu130", "buildfarm, of a source that has a local version"),
    ("cu13", "", "cu13", "buildfarm, stable ABI"),
    ("cu130.torch211", "2.11", "cu130", "buildfarm, in its earlier form"),
    ("cu130.torch29", "2.9", "cu130", "buildfarm, in its earlier form"),
    ("torch2120cu132", "2.12", "cu132", "NATTEN 0.21, whl.natten.org"),
    ("torch210cu121", "2.1", "cu121", "NATTEN 0.17, whl.natten.org/old; stable-fast 0.0.13"),
    ("cu.12.8.torch.2.11", "2.11", "cu128", "Astral's GPU indexes, wheels.astral.sh"),
    ("cu12torch2.8cxx11abiTRUE", "2.8", "cu12", "flash-attention 2.8.3, releases on GitHub"),
    ("cu11torch1.13cxx11abiFALSE", "1.13", "cu11", "flash-attention 2.3, releases on GitHub"),
    ("pt210cu128", "2.10", "cu128", "PyG, data.pyg.org/whl"),
    ("pt113cu117", "1.13", "cu117", "PyG, data.pyg.org/whl"),
    ("pt240cu124", "2.4", "cu124", "gsplat, docs.gsplat.studio/whl"),
    ("pt28.cu128", "2.8", "cu128", "fvdb-core 0.3.0"),
    ("pt2.4.0cu121", "2.4", "cu121", "PyTorch3D, miropsota.github.io/torch_packages_builder"),
    ("2a420edpt2.4.1cu121", "2.4", "cu121", "detectron2, miropsota.github.io/torch_packages_builder"),
    ("cu121.torch2.4.0", "2.4", "cu121", "exllamav2 0.1.8, releases on GitHub"),
    ("cuda12.8.torch2.9.1", "2.9", "cu128", "k2, k2-fsa.github.io/k2/cuda.html"),
    ("cu12.4torch2.4", "2.4", "cu124", "nunchaku's setup.py"),
    ("torch2.8.0.cu128", "2.8", "cu128", "o_voxel, prebuilt by others"),
    ("cu130.torch210.gb300", "2.10", "cu130", "wheels for one GPU"),
    ("torch2.4", "2.4", "", "pytorch_ocl 0.2.0, releases on GitHub"),
    ("d20250101.cu128", "", "cu128", "setuptools-scm"),
    ("cu92", "", "cu92", "PyTorch, old releases"),
    ("gabc123", "", "", "setuptools-scm"),
    ("5043d15", "", "", "the hash of a commit"),
    ("opt2.dtk24", "", "", "a word that ends with pt"),
]


@pytest.mark.parametrize(("local", "series", "cuda", "who"), FORMS)
def test_a_local_version_in_use_is_read(local: str, series: str, cuda: str, who: str) -> None:
    found = read_local(Version(f"1.0+{local}").local or "")
    assert found == LocalVersion((series,) if series else (), cuda), who
    assert found.remark == ""


@pytest.mark.parametrize("local", ["cpu", "pt21cpu", "cpu.torch2.8.0", "rocm6.2", "xpu"])
def test_a_build_without_cuda_is_one(local: str) -> None:
    assert read_local(local).without_cuda
    assert read_local(local).remark == ""


@pytest.mark.parametrize(
    ("local", "series"),
    [
        ("torch2160", ("2.16",)),
        ("torch2160cu132", ("2.16",)),
        ("torch216cu132", ("2.16",)),
        ("torch2161cu140", ("2.16",)),
        ("torch2147cu132", ("2.14",)),
        ("torch300cu140", ("3.0",)),
        ("pt30cu140", ("3.0",)),
        ("cu140.torch3.0", ("3.0",)),
        ("torch310cu140", ("3.1", "3.10")),
    ],
)
def test_a_release_after_the_known_ones_is_read(local: str, series: tuple[str, ...]) -> None:
    assert read_local(local).series == series


@pytest.mark.parametrize(
    ("local", "remark"),
    [
        ("torch211", "names torch 2.1 or 2.11"),
        ("cu12torch210", "names torch 2.1 or 2.10"),
        ("torch2", "seems to name torch in a form that buildfarm does not read"),
        ("torch20250101", "seems to name torch in a form that buildfarm does not read"),
        ("torch12.8", "seems to name torch in a form that buildfarm does not read"),
        ("2.4.cu121", "seems to name torch in a form that buildfarm does not read"),
        ("12.8torch2.7", "seems to name CUDA in a form that buildfarm does not read"),
        ("cu1281torch2", "seems to name torch and CUDA in a form that buildfarm does not read"),
    ],
)
def test_a_doubt_is_a_remark(local: str, remark: str) -> None:
    assert read_local(local).remark == remark


def test_the_torch_of_a_new_version_counts_as_a_number() -> None:
    builds = [replace(BUILD, torch=Torch(2, minor, 0)) for minor in (9, 10, 11)]
    versions = [Version(f"1.0+{build.local_version}") for build in builds]
    assert [version.local for version in versions] == ["cu130.torch2.9", "cu130.torch2.10", "cu130.torch2.11"]
    assert sorted(versions) == versions


@pytest.mark.parametrize(
    ("earlier", "now"),
    [
        ("1.0+cu130.torch211", "1.0+cu130.torch2.11"),
        ("1.0+git7.cu126.torch29", "1.0+git7.cu126.torch2.9"),
        ("ops-1.0+cu130.torch211-cp312-cp312", "ops-1.0+cu130.torch2.11-cp312-cp312"),
        ("1.0+cu130.torch2.11", "1.0+cu130.torch2.11"),
        ("1.0+torch2120cu132", "1.0+torch2120cu132"),
        ("1.0+cu13", "1.0+cu13"),
    ],
)
def test_an_earlier_version_has_a_current_form(earlier: str, now: str) -> None:
    assert current_form(earlier) == now
