"""The base image, compiler and Python that are chosen for an image."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from builder.errors import Code
from builder.images.base_image_choice import ImageChooser
from builder.matrix.axes import Cell, Cuda, Platform
from builder.matrix.compat import Compat
from builder.matrix.config import ImageRule
from tests.refused import refused
from tests.unit.matrix.make import matrix
from tests.unit.wheels.make_record import build_for as build

COMPAT = Compat.load()
PYPA = "quay.io/pypa/manylinux_2_28_x86_64"


def chooser(lock: dict[str, str] | None = None, **settings: Any) -> ImageChooser:
    """The chooser of a matrix with these settings."""
    return ImageChooser(replace(matrix(["2.11"], ["13.0"], ["3.12"]), **settings), COMPAT, lock or {})


@pytest.mark.parametrize(
    ("cell", "base", "gcc"),
    [
        ("torch1.12.1-cu113-cp310", "11.3.1-devel-ubuntu20.04", 10),
        ("torch2.0.1-cu118-cp311", "11.8.0-devel-rockylinux8", 11),
        ("torch2.2.2-cu121-cp311", "12.1.1-devel-rockylinux8", 12),
        ("torch2.6.0-cu124-cp312", "12.4.1-devel-rockylinux8", 13),
        ("torch2.8.0-cu128-cp312", "12.8.1-devel-rockylinux8", 14),
        ("torch2.11.0-cu128-cp312", "12.8.1-devel-rockylinux8", 13),  # torch 2.11's own check is stricter than nvcc
        ("torch2.11.0-cu130-cp312", "13.0.3-devel-rockylinux8", 14),
        ("torch2.12.1-cu132-cp314", "13.2.1-devel-rockylinux8", 14),
    ],
)
def test_nvidias_image_of_the_cuda_version_and_the_newest_supported_gcc(cell: str, base: str, gcc: int) -> None:
    image = chooser().build_image(build(cell))
    assert (image.base, image.gcc) == (f"nvidia/cuda:{base}", gcc)


def test_every_existing_cell_has_an_image_with_a_supported_gcc() -> None:
    chosen = chooser()
    for torch in COMPAT.torches:
        for cuda in COMPAT.torch(torch).variants:
            for python in COMPAT.torch(torch).pythons[torch]:
                if COMPAT.why_not(torch, cuda, python, Platform.LINUX_X86_64) or cuda < Cuda(11, 8):
                    continue
                image = chosen.build_image(build(str(Cell(torch, cuda, python))))
                oldest, newest = COMPAT.gcc_range(torch, cuda)
                assert image.gcc is not None
                assert oldest <= image.gcc <= newest
                assert image.base.startswith(f"nvidia/cuda:{cuda}.")


@pytest.mark.parametrize(
    ("cell", "tag"),
    [
        ("torch2.4.1-cu121-cp38", "2026.03.20-1"),
        ("torch2.9.1-cu130-cp313t", "2026.03.20-1"),
        ("torch2.11.0-cu130-cp312", "2026.10.26-1"),
        ("torch2.11.0-cu130-cp314t", "2026.10.26-1"),
    ],
)
def test_a_python_comes_from_the_newest_image_that_has_it(cell: str, tag: str) -> None:
    image = chooser().build_image(build(cell))
    assert image.pythons.image == f"{PYPA}:{tag}"
    assert image.tools.image == f"{PYPA}:2026.10.26-1"


def test_aarch64_has_its_own_manylinux_image_and_name() -> None:
    image = chooser().build_image(build("torch2.11.0-cu130-cp312-linux_aarch64"))
    assert image.tools.image == "quay.io/pypa/manylinux_2_28_aarch64:2026.10.26-1"
    assert image.name == "build-cu130-rockylinux8-gcc14-cp312-aarch64"
    run = chooser().runtime_image(Cell.parse("torch2.11.0-cu130-cp312-linux_aarch64"))
    assert run.name == "run-torch2.11.0-cu130-cp312-linux-aarch64"


OLD, NEW = "torch2.2.2-cu121-cp311", "torch2.11.0-cu130-cp313"


@pytest.mark.parametrize(
    ("rule", "cell", "chosen"),
    [
        (
            ImageRule("*-cu121-*", "mirror.example/cuda:12.1.1-devel-ubuntu22.04"),
            OLD,
            {
                "gcc": 12,
                "toolkit": Cuda(12, 1),
                "name": "build-cu121-mirror-example-cuda-12-1-1-devel-ubuntu22-04-gcc12-cp311",
            },
        ),
        # The package index does not have this nvcc, so a base image of an unknown distribution must.
        (
            ImageRule("*", "registry.example/base:7"),
            OLD,
            {"distribution": None, "gcc": None, "gcc_range": (9, 12), "toolkit": Cuda(12, 1)},
        ),
        # From CUDA 13.0 on, only a name with the same CUDA version means that a base image has the toolkit.
        (ImageRule("*", "nvidia/cuda:13.0.3-devel-ubuntu22.04"), NEW, {"toolkit": Cuda(13, 0)}),
        (ImageRule("*", "nvidia/cuda:13.2.1-devel-ubuntu22.04"), NEW, {"toolkit": None}),
        (
            ImageRule("*", "quay.io/manylinux_cuda/manylinux_2_28_x86_64_cuda13_0:latest"),
            NEW,
            {"toolkit": Cuda(13, 0)},
        ),
        (ImageRule("*", "quay.io/manylinux_cuda/manylinux_2_28_x86_64_cuda12_9:latest"), NEW, {"toolkit": None}),
        (ImageRule("*", "buildfarm-base:bookworm"), NEW, {"toolkit": None}),
        # A declared toolkit is required, and limits the compiler.
        (
            ImageRule("*", "in-house/cuda:trixie", toolkit=Cuda(12, 4)),
            OLD,
            {"toolkit": Cuda(12, 4), "release": "12.4", "any_minor": False, "gcc": 12},
        ),
    ],
    ids=lambda value: value.image if isinstance(value, ImageRule) else "",
)
def test_an_image_of_the_matrix_comes_first(rule: ImageRule, cell: str, chosen: dict[str, Any]) -> None:
    image = chooser(images=(rule,)).build_image(build(cell))
    assert {"base": image.base, **{name: getattr(image, name) for name in chosen}} == {"base": rule.image, **chosen}


def test_a_declared_toolkit_of_a_different_major_is_an_error() -> None:
    rule = ImageRule("*", "in-house/cuda:trixie", toolkit=Cuda(12, 4))
    with refused(Code.IMAGE_UNSUITABLE, "12.4", "11.8"):
        chooser(images=(rule,)).build_image(build("torch2.3.1-cu118-cp311"))


def test_any_minor_version_can_be_allowed() -> None:
    settings = replace(matrix(["2.2"], ["12.1"], ["3.11"]), images=(ImageRule("*", "in-house/base:7"),))
    chosen = ImageChooser(settings, COMPAT, {}, minor_mismatch=True)
    image = chosen.build_image(build("torch2.2.2-cu121-cp311"))
    assert (image.toolkit, image.release) == (Cuda(12, 1), "12.")


def test_manylinux_base_images_have_their_own_pythons() -> None:
    base = "quay.io/manylinux_cuda/manylinux_2_28_x86_64_cuda12_9:latest"
    chosen = chooser(images=(ImageRule("*", base),))
    image = chosen.build_image(build("torch2.8.0-cu129-cp313"))
    assert (image.pythons.image, image.tools.image) == (None, base)
    assert image.gcc == 14
    old = chosen.build_image(build("torch2.8.0-cu129-cp313t"))
    assert old.pythons.image == f"{PYPA}:2026.03.20-1", "current images no longer have it"


def test_a_rule_can_name_the_image_of_pythons() -> None:
    rules = (ImageRule("torch2.2.*", "in-house/base:1", "in-house/pythons:1"), ImageRule("*", "in-house/other:1"))
    chosen = chooser(images=rules)
    assert chosen.build_image(build("torch2.2.2-cu121-cp311")).pythons.image == "in-house/pythons:1"
    assert chosen.build_image(build("torch2.3.1-cu121-cp311")).pythons.image == f"{PYPA}:2026.10.26-1"


def test_a_rule_with_an_unsupported_compiler_is_an_error() -> None:
    with refused(Code.IMAGE_UNSUITABLE, "trixie", "12, 13, 14", "2.0.1", "5 to 11"):
        chooser(images=(ImageRule("*", "debian:trixie"),)).build_image(build("torch2.0.1-cu118-cp311"))


def test_a_runtime_image_has_the_exact_torch_and_no_toolkit() -> None:
    default, other = (chooser().runtime_image(Cell.parse(f"torch2.2.2-{cuda}-cp311")) for cuda in ("cu121", "cu118"))
    assert (default.base, *default.packages) == ("nvidia/cuda:12.1.1-base-ubuntu22.04", "torch==2.2.2", "numpy<2")
    assert (other.base, other.packages[0]) == ("nvidia/cuda:11.8.0-base-ubuntu22.04", "torch==2.2.2+cu118")


def test_cells_can_run_on_a_different_base_than_they_are_built_on() -> None:
    rule = ImageRule("*", "in-house/devel:1", "in-house/pythons:1", "in-house/pythons:1")
    chosen = chooser(images=(rule,))
    run = chosen.runtime_image(Cell.parse("torch2.2.2-cu121-cp311"))
    assert (run.base, run.pythons.image) == ("in-house/pythons:1", None)
    assert run.bases == ("in-house/pythons:1",)
    assert chosen.build_image(build("torch2.2.2-cu121-cp311")).bases == ("in-house/devel:1", "in-house/pythons:1")
