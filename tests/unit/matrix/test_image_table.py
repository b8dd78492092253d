"""Image facts: tags, distributions by image name, and invalid rows."""

from __future__ import annotations

import pytest

from builder.matrix.axes import Cuda, Platform, Python
from builder.matrix.compat import Compat
from builder.matrix.compat_table import ImageFacts

IMAGES = Compat.load().images
X86 = Platform.LINUX_X86_64


def test_a_known_tag_implies_the_plain_devel_image() -> None:
    tags = ("12.0.9-devel-rockylinux8", "12.0.10-cudnn8-devel-rockylinux8", "12.0.9-base-rockylinux9", "latest")
    facts = ImageFacts("12.0.10", ("22.04",), tags)
    assert facts.systems() == {"ubuntu22.04": "12.0.10", "rockylinux8": "12.0.10"}


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
    found = IMAGES.distribution_of(image)
    assert (found.name if found else None) == name


def test_the_oldest_glibc_comes_first() -> None:
    libraries = [tuple(map(int, d.glibc.split("."))) for d in IMAGES.distributions]
    assert libraries == sorted(libraries)
    assert IMAGES.distributions[0].name == "rockylinux8"
    assert libraries[0] >= (2, 28), "which pypa's Pythons need"


def test_an_unknown_python_has_no_image() -> None:
    assert IMAGES.pythons_image(Python(3, 7), X86) == "quay.io/pypa/manylinux_2_28_x86_64:2025.04.19-1"
    assert IMAGES.pythons_image(Python(2, 7), X86) is None


def test_nvidia_has_manylinux_images_for_some_cudas() -> None:
    name = "quay.io/manylinux_cuda/manylinux_2_28_aarch64_cuda12_9:latest"
    assert IMAGES.cuda_manylinux(Cuda(12, 9), Platform.LINUX_AARCH64) == name
    assert IMAGES.cuda_manylinux(Cuda(12, 4), X86) is None
