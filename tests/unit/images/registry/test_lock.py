"""buildfarm.lock: writing, strict reading, updates from registries."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.errors import Code, UsageError
from builder.images.engine import Engine
from builder.images.registry.lock import lock_path, read_lock, refresh_lock, write_lock
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
