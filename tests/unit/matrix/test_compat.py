"""The facts of compat.yaml are consistent; facts about images. The reasons why not are in the transcript of `plan`."""

from pathlib import Path

import pytest
import yaml

from builder.errors import Code
from builder.matrix import compat as module
from builder.matrix.axes import Arch, Cuda, Platform, Python, Torch
from builder.matrix.compat import Compat
from builder.matrix.compat_table import read_systems
from tests.refused import refused

X86 = Platform.LINUX_X86_64
COMPAT = Compat.load()


def test_facts_of_a_toolkit() -> None:
    newest = COMPAT.toolkit(Cuda(13, 5))
    assert (newest.ptx, newest.gcc_max, newest.archs) == ("9.5", 16, COMPAT.toolkit(Cuda(13, 4)).archs)
    facts = COMPAT.toolkit(Cuda(13, 0))
    assert (facts.gcc_max, facts.driver_floor) == (15, "580.65.06")
    assert Arch.parse("12.0f") in facts.archs
    with refused(Code.VERSION_UNKNOWN, "10.2", "11.3"):
        COMPAT.toolkit(Cuda(10, 2))


@pytest.mark.parametrize(
    ("torch", "cuda", "gcc"),
    [
        pytest.param("2.2.2", "12.1", (9, 12), id="toolkit-limits"),
        pytest.param("2.2.2", "12.4", (9, 12), id="headers-limit-another-minor"),
        pytest.param("2.11.0", "12.8", (9, 13), id="torch-check-too-strict"),
        pytest.param("2.13.0", "13.0", (10, 15), id="cxx20-needs-gcc-10"),
        pytest.param("2.12.0", "12.6", (10, 13), id="cxx20-is-passed-by-torch"),
        pytest.param("2.7.0", "11.8", (9, 11), id="old-toolkit"),
    ],
)
def test_compilers(torch: str, cuda: str, gcc: tuple[int, int]) -> None:
    assert COMPAT.gcc_range(Torch.parse(torch), Cuda.parse(cuda)) == gcc


def test_toolkits_know_the_official_architectures() -> None:
    strange = [
        f"torch {torch} CUDA {cuda}: {arch}"
        for torch in COMPAT.torches
        for cuda, by_platform in COMPAT.torch(torch).variants.items()
        if not COMPAT.why_not_cuda(torch, cuda)
        for archs in by_platform.values()
        for arch in archs
        if COMPAT.why_not_arch(cuda, arch) or COMPAT.why_not_listed(torch, arch)
    ]
    assert strange == []


def test_every_release_has_a_built_default_variant() -> None:
    for torch in COMPAT.torches:
        facts = COMPAT.torch(torch)
        assert facts.default in facts.variants
        assert COMPAT.official_archs(torch, facts.default, X86)


def test_every_block_names_its_source() -> None:
    raw = yaml.load(Path(module.__file__).with_name("compat.yaml").read_text(encoding="utf-8"), Loader=yaml.BaseLoader)
    blocks = {
        **{f"torch {s}": row for s, row in raw["torch"].items()},
        **{f"torch {s} {v}": facts for s, row in raw["torch"].items() for v, facts in row["variants"].items()},
        **{f"toolkit {c}": row for c, row in raw["toolkits"].items()},
        **{f"toolkit {c} {k}": row[k] for c, row in raw["toolkits"].items() for k in ("gcc_max", "images")},
        **{f"standard {s}": row for s, row in raw["cxx_standards"].items()},
        **{k: raw[k] for k in ("torch_gcc_checks", "driver_floors", "torch_arch_list")},
        **{k: raw[k] for k in ("manylinux", "distributions", "gpus")},
    }
    assert [name for name, block in blocks.items() if not block.get("source")] == []


def test_a_known_tag_implies_the_plain_devel_image() -> None:
    tags = ("12.0.9-devel-rockylinux8", "12.0.10-cudnn8-devel-rockylinux8", "12.0.9-base-rockylinux9", "latest")
    found = read_systems({"version": "12.0.10", "ubuntu": ["22.04"], "rhel_like": tags})
    assert found == {"ubuntu22.04": "12.0.10", "rockylinux8": "12.0.10"}


@pytest.mark.parametrize(
    ("image", "name"),
    [
        ("nvidia/cuda:12.1.1-devel-rockylinux8", "rockylinux8"),
        ("registry.example/almalinux8-cuda:1", "rockylinux8"),
        ("quay.io/pypa/manylinux_2_34_x86_64:latest", "rockylinux9"),
        ("ubuntu:22.04", "ubuntu22.04"),
        ("nvidia/cuda:13.0.3-devel-ubuntu24.04@sha256:00", "ubuntu24.04"),
        ("debian:bookworm", "bookworm"),
        ("registry.example/farm/base:7", None),
    ],
)
def test_an_image_name_identifies_its_distribution(image: str, name: str | None) -> None:
    found = COMPAT.images.distribution_of(image)
    assert (found.name if found else None) == name


def test_the_oldest_glibc_comes_first() -> None:
    libraries = [tuple(map(int, d.glibc.split("."))) for d in COMPAT.images.distributions]
    assert libraries == sorted(libraries)
    assert COMPAT.images.distributions[0].name == "rockylinux8"
    assert libraries[0] >= (2, 28), "which pypa's Pythons need"


def test_an_unknown_python_has_no_image() -> None:
    assert COMPAT.images.pythons_image(Python(3, 7), X86) == "quay.io/pypa/manylinux_2_28_x86_64:2025.04.19-1"
    assert COMPAT.images.pythons_image(Python(2, 7), X86) is None
