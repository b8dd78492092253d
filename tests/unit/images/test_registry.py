"""Image names, mirrors of registries, and buildfarm.lock: strict reading, updates from registries."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.errors import Code, UsageError
from builder.images.engine import Engine, refresh_lock
from builder.images.registry import Reference, located, lock_path, read_lock, read_mirrors, write_lock
from tests.conftest import coded
from tests.unit.images.fake_engine import FakeEngine

ONE, TWO = "sha256:" + "11" * 32, "sha256:" + "22" * 32


def test_a_written_lock_is_sorted_and_readable(tmp_path: Path) -> None:
    path = lock_path(tmp_path / "matrix.yaml")
    assert read_lock(path) == {}
    write_lock(path, {"b/x:1": TWO, "a": ONE})
    assert read_lock(path) == {"a": ONE, "b/x:1": TWO}
    assert path.read_text().splitlines()[-2:] == [f'"a" = "{ONE}"', f'"b/x:1" = "{TWO}"']


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("version = 1\nimages = 3", "`images` has no sha256"),
        ('version = 1\n[images]\n"a" = "latest"', "`a` has no sha256"),
        ('version = 1\n[images]\n"a" = "sha256:12"', "`a` has no sha256"),
        ("version = 2\n[images]", "has version 2"),
        ("", "has version None"),
        ("<<<<<<< ours", "is not valid TOML"),
    ],
)
def test_an_invalid_lock_is_a_usage_error(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "buildfarm.lock"
    path.write_text(text)
    with pytest.raises(UsageError, match=reason) as wrong:
        read_lock(path)
    assert wrong.value.where == str(path)


def test_a_refresh_updates_these_images_and_keeps_the_others(tmp_path: Path, fake: FakeEngine) -> None:
    path = tmp_path / "buildfarm.lock"
    moved, fresh, gone = "r.example/a:1", "r.example/b:1", "r.example/gone:1"
    write_lock(path, {moved: ONE, gone: TWO, "not/refreshed": ONE})
    fake.digests = {moved: TWO, fresh: ONE}
    problems = refresh_lock(path, [moved, fresh, gone], Engine())
    assert [(problem.where, problem.code) for problem in problems] == [(gone, Code.IMAGE_NOT_FOUND)]
    assert read_lock(path) == {**fake.digests, gone: TWO, "not/refreshed": ONE}
    first = path.read_bytes()
    refresh_lock(path, [fresh, moved], Engine())
    assert path.read_bytes() == first


def test_without_an_engine_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (problem,) = refresh_lock(tmp_path / "buildfarm.lock", ["a:1"], Engine())
    assert problem.code is Code.ENGINE_MISSING
    assert not (tmp_path / "buildfarm.lock").exists()


@pytest.mark.parametrize(
    ("image", "name"),
    [
        ("ubuntu", "docker.io/library/ubuntu:latest"),
        ("registry-1.docker.io/nvidia/cuda:1", "docker.io/nvidia/cuda:1"),
        (f"quay.io/pypa/many:2026@{ONE}", f"quay.io/pypa/many:2026@{ONE}"),
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
        (f"nvidia/cuda:1@{ONE}", f"r.example/hub/nvidia/cuda:1@{ONE}"),
        (f"nvidia/cuda@{ONE}", f"r.example/hub/nvidia/cuda@{ONE}"),
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
