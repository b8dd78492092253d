"""Which base, compiler and Python an image is made of."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from builder.errors import UsageError
from builder.images.specs import Choice
from builder.matrix.axes import AbiClass, Arch, Cell, Cuda, Platform, Python
from builder.matrix.compat import Compat
from builder.matrix.plan import Build
from tests.unit.matrix.make import matrix

COMPAT = Compat.load()
PYPA = "quay.io/pypa/manylinux_2_28_x86_64"
ARM = Platform.LINUX_AARCH64


def build(cell: str, *pythons: str) -> Build:
    """A build for one cell."""
    for_ = Cell.parse(cell)
    wanted = tuple(map(Python.parse, pythons)) or (for_.python,)
    return Build("ops", "1.0", AbiClass.CPYTHON, for_.torch, for_.cuda, wanted, (Arch(9, 0),), for_.platform, (for_,))


def choice(lock: dict[str, str] | None = None, **settings: Any) -> Choice:
    """The choice of a matrix with these settings."""
    return Choice(replace(matrix(["2.11"], ["13.0"], ["3.12"]), **settings), COMPAT, lock or {})


@pytest.mark.parametrize(
    ("cell", "base", "gcc"),
    [
        ("torch2.0.1-cu118-cp311", "11.8.0-devel-rockylinux8", 11),
        ("torch2.2.2-cu121-cp311", "12.1.1-devel-rockylinux8", 12),
        ("torch2.6.0-cu124-cp312", "12.4.1-devel-rockylinux8", 13),
        ("torch2.8.0-cu128-cp312", "12.8.1-devel-rockylinux8", 14),
        ("torch2.11.0-cu128-cp312", "12.8.1-devel-rockylinux8", 13),  # torch 2.11's own check is stricter than nvcc
        ("torch2.11.0-cu130-cp312", "13.0.3-devel-rockylinux8", 14),
        ("torch2.12.1-cu132-cp314", "13.2.1-devel-rockylinux8", 14),
    ],
)
def test_the_toolkit_s_own_image_and_the_newest_gcc_it_takes(cell: str, base: str, gcc: int) -> None:
    image = choice().build_image(build(cell))
    assert (image.base, image.gcc) == (f"nvidia/cuda:{base}", gcc)


def test_every_real_cell_has_an_image_whose_gcc_nvcc_and_torch_take() -> None:
    chosen = choice()
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


def test_ubuntu_where_no_rocky_is_known() -> None:
    facts = COMPAT.toolkit(Cuda(13, 4)).images
    assert facts.systems() == {"ubuntu24.04": "13.4.2", "ubuntu26.04": "13.4.2"}
    systems = COMPAT.toolkit(Cuda(12, 5)).images.systems()
    assert systems == {"ubuntu20.04": "12.5.1", "ubuntu22.04": "12.5.1", "rockylinux9": "12.5.1"}


@pytest.mark.parametrize(
    ("cell", "tag"),
    [
        ("torch2.4.1-cu121-cp38", "2026.03.20-1"),
        ("torch2.9.1-cu130-cp313t", "2026.03.20-1"),
        ("torch2.11.0-cu130-cp312", "2026.08.04-1"),
        ("torch2.11.0-cu130-cp314t", "2026.08.04-1"),
    ],
)
def test_pythons_come_from_the_newest_image_that_has_them(cell: str, tag: str) -> None:
    image = choice().build_image(build(cell))
    assert image.pythons.image == f"{PYPA}:{tag}"
    assert image.tools.image == f"{PYPA}:2026.08.04-1"


def test_a_build_that_takes_several_pythons_gets_the_first() -> None:
    assert choice().build_image(build("torch2.11.0-cu130-cp312", "3.12", "3.10")).pythons.python == Python(3, 12)


def test_arm_has_its_own_manylinux_and_name() -> None:
    image = choice().build_image(build("torch2.11.0-cu130-cp312-linux_aarch64"))
    assert image.tools.image == "quay.io/pypa/manylinux_2_28_aarch64:2026.08.04-1"
    assert image.name == "build-cu130-rockylinux8-gcc14-cp312-aarch64"
    run = choice().runtime_image(Cell.parse("torch2.11.0-cu130-cp312-linux_aarch64"))
    assert run.name == "run-torch2.11.0-cu130-cp312-linux-aarch64"


def test_images_of_the_matrix_come_first_and_their_distribution_is_read_from_the_name() -> None:
    image = choice(images=(("*-cu121-*", "mirror.example/cuda:12.1.1-devel-ubuntu22.04"),)).build_image(
        build("torch2.2.2-cu121-cp311")
    )
    assert (image.base, image.gcc, image.exact) == ("mirror.example/cuda:12.1.1-devel-ubuntu22.04", 12, True)
    assert image.name == "build-cu121-mirror-example-cuda-12-1-1-devel-ubuntu22-04-gcc12-cp311"


def test_an_image_that_tells_nothing_is_taken_as_it_is() -> None:
    image = choice(images=(("*", "registry.example/base:7"),)).build_image(build("torch2.2.2-cu121-cp311"))
    assert (image.distribution, image.gcc, image.gcc_range) == (None, None, (9, 12))
    assert not image.exact
    assert image.needs_toolkit


@pytest.mark.parametrize(
    ("base", "exact"),
    [
        ("nvidia/cuda:12.9.1-devel-ubuntu22.04", True),
        ("nvidia/cuda:12.8.1-devel-ubuntu22.04", False),
        ("quay.io/manylinux_cuda/manylinux_2_28_x86_64_cuda12_9:latest", True),
        ("quay.io/manylinux_cuda/manylinux_2_28_x86_64_cuda12_2:latest", False),
        ("buildfarm-base:bookworm", False),
    ],
)
def test_only_the_name_of_the_very_toolkit_asks_for_that_minor(base: str, exact: bool) -> None:
    image = choice(images=(("*", base),)).build_image(build("torch2.8.0-cu129-cp313"))
    assert image.exact is exact


def test_manylinux_bases_bring_their_pythons() -> None:
    base = "quay.io/manylinux_cuda/manylinux_2_28_x86_64_cuda12_9:latest"
    chosen = choice(images=(("*", base),))
    image = chosen.build_image(build("torch2.8.0-cu129-cp313"))
    assert (image.pythons.image, image.tools.image) == (None, base)
    assert image.gcc == 14
    old = chosen.build_image(build("torch2.8.0-cu129-cp313t"))
    assert old.pythons.image == f"{PYPA}:2026.03.20-1", "which today's images have no more"


def test_pythons_may_be_named() -> None:
    rules = (("torch2.2.*", "in-house/base:1"), ("*", "in-house/other:1"))
    chosen = choice(images=rules, pythons=(("torch2.2.*", "in-house/pythons:1"), ("*", "")))
    assert chosen.build_image(build("torch2.2.2-cu121-cp311")).pythons.image == "in-house/pythons:1"
    assert chosen.build_image(build("torch2.3.1-cu121-cp311")).pythons.image == f"{PYPA}:2026.08.04-1"


def test_a_distribution_without_a_fitting_compiler_is_refused() -> None:
    with pytest.raises(UsageError, match=r"trixie has gcc 12, 13, 14, and torch 2\.0\.1 with CUDA 11\.8 takes 5 to 11"):
        choice(images=(("*", "debian:trixie"),)).build_image(build("torch2.0.1-cu118-cp311"))


def test_a_distribution_without_a_fitting_compiler_is_passed_over() -> None:
    rocky, *others = COMPAT.images.distributions
    compat = copy.copy(COMPAT)
    compat.images = replace(COMPAT.images, distributions=(replace(rocky, gcc=(8, 14)), *others))
    image = Choice(matrix(["2.11"], ["13.0"], ["3.12"]), compat, {}).build_image(build("torch2.3.1-cu118-cp311"))
    assert (image.base, image.gcc) == ("nvidia/cuda:11.8.0-devel-ubuntu20.04", 10)


def test_ubuntu_is_the_other_branch() -> None:
    image = choice().build_image(build("torch1.12.1-cu113-cp310"))
    assert (image.base, image.gcc) == ("nvidia/cuda:11.3.1-devel-ubuntu20.04", 10)


def test_a_toolkit_without_an_image_is_refused() -> None:
    compat = copy.copy(COMPAT)
    compat.images = replace(COMPAT.images, distributions=())
    chosen = Choice(matrix(["2.11"], ["13.0"], ["3.12"]), compat, {})
    with pytest.raises(UsageError, match=r"no CUDA 12\.1 image of NVIDIA is known"):
        chosen.build_image(build("torch2.2.2-cu121-cp311"))


def test_a_runtime_names_its_torch_exactly_and_needs_no_toolkit() -> None:
    default, other = (choice().runtime_image(Cell.parse(f"torch2.2.2-{cuda}-cp311")) for cuda in ("cu121", "cu118"))
    assert (default.base, default.torch) == ("nvidia/cuda:12.1.1-base-rockylinux8", "torch==2.2.2")
    assert (other.base, other.torch) == ("nvidia/cuda:11.8.0-base-rockylinux8", "torch==2.2.2+cu118")


def test_the_lock_pins_every_image_it_has() -> None:
    digest = "sha256:" + "cd" * 32
    image = choice({f"{PYPA}:2026.08.04-1": digest}).build_image(build("torch2.2.2-cu121-cp311"))
    assert image.pythons.image == image.tools.image == f"{PYPA}:2026.08.04-1@{digest}"
    assert image.base == "nvidia/cuda:12.1.1-devel-rockylinux8"
