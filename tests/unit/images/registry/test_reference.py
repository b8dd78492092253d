"""Image names, and the mirrors of registries."""

from __future__ import annotations

import pytest

from builder.errors import Code, UsageError
from builder.images.registry.reference import Reference, located, read_mirrors
from tests.conftest import coded

DIGEST = "sha256:" + "11" * 32


@pytest.mark.parametrize(
    ("image", "name"),
    [
        ("ubuntu", "docker.io/library/ubuntu:latest"),
        ("registry-1.docker.io/nvidia/cuda:1", "docker.io/nvidia/cuda:1"),
        (f"quay.io/pypa/many:2026@{DIGEST}", f"quay.io/pypa/many:2026@{DIGEST}"),
        ("registry.example:5000/a/b", "registry.example:5000/a/b:latest"),
        ("localhost/a:1", "localhost/a:1"),
    ],
)
def test_an_image_name_is_parsed_as_docker_does(image: str, name: str) -> None:
    assert Reference.parse(image).name == name


@pytest.mark.parametrize(
    ("image", "wanted"),
    [
        ("nvidia/cuda:12.1.1-x", "r.example/hub/nvidia/cuda:12.1.1-x"),
        ("docker.io/nvidia/cuda:1", "r.example/hub/nvidia/cuda:1"),
        (f"nvidia/cuda:1@{DIGEST}", f"r.example/hub/nvidia/cuda:1@{DIGEST}"),
        (f"nvidia/cuda@{DIGEST}", f"r.example/hub/nvidia/cuda@{DIGEST}"),
        ("ubuntu", "r.example/hub/library/ubuntu:latest"),
        ("quay.io/pypa/many:1", "quay.io/pypa/many:1"),
        ("own.example/a", "own.example/a"),
    ],
)
def test_a_mirror_has_the_image_under_the_same_path(image: str, wanted: str) -> None:
    assert located(image, {"docker.io": "r.example/hub"}) == wanted


def test_the_variable_takes_precedence_over_matrix_yaml() -> None:
    declared = {"docker.io": "a.example", "quay.io": "a.example/quay"}
    mirrors = read_mirrors(declared, {"BUILDFARM_REGISTRIES": " docker.io=127.0.0.1:5000  ghcr.io=b.example/x "})
    images = ("nvidia/cuda:1", "quay.io/pypa/many:1", "ghcr.io/a/b:1")
    assert [located(image, mirrors) for image in images] == [
        "127.0.0.1:5000/nvidia/cuda:1",
        "a.example/quay/pypa/many:1",
        "b.example/x/a/b:1",
    ]


@pytest.mark.parametrize("value", ["docker.io", "docker.io=https://a.example", "=a.example", "docker.io=a.example/X Y"])
def test_an_invalid_variable_is_a_usage_error(value: str) -> None:
    with pytest.raises(UsageError, check=coded(Code.VALUE_INVALID)) as caught:
        read_mirrors({}, {"BUILDFARM_REGISTRIES": value})
    assert caught.value.where == "BUILDFARM_REGISTRIES"
