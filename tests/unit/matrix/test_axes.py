"""The names of axes and cells, and local versions of wheels, each form with the page that shows it."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from builder.errors import UsageError
from builder.matrix.axes import AbiClass, Arch, Cell, Cuda, Platform, Python, Torch
from builder.matrix.compat import Compat
from builder.matrix.config import Selection
from builder.matrix.local_version import LocalVersion, current_form, read_local
from builder.matrix.plan import make_plan
from tests.unit.matrix.make import matrix, recipe

torches = st.builds(Torch, st.integers(1, 9), st.integers(0, 99), st.integers(0, 99))
cudas = st.builds(Cuda, st.integers(1, 99), st.integers(0, 9))
pythons = st.builds(Python, st.just(3), st.integers(6, 99), st.booleans())
archs = st.builds(Arch, st.integers(1, 99), st.integers(0, 9), st.sampled_from(["", "a", "f"]), st.booleans())
cells = st.builds(Cell, torches, cudas, pythons, st.sampled_from(Platform))


@given(st.one_of(torches, cudas, pythons, archs, cells))
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
