"""buildfarm.lock: written whole, read strictly, refreshed from registries."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.errors import UsageError
from builder.images.lock import lock_path, read_lock, refresh_lock, write_lock
from tests.unit.images.stand_in_registry import running_registry

ONE, TWO = "sha256:" + "11" * 32, "sha256:" + "22" * 32


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No memory of this machine's passwords and proxies."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


def test_it_reads_what_it_wrote_and_sorts(tmp_path: Path) -> None:
    path = lock_path(tmp_path / "matrix.yaml")
    write_lock(path, {"b/x:1": TWO, "a": ONE})
    assert read_lock(path) == {"a": ONE, "b/x:1": TWO}
    assert path.read_text().splitlines()[-2:] == [f'"a" = "{ONE}"', f'"b/x:1" = "{TWO}"']


def test_no_lock_is_no_pins(tmp_path: Path) -> None:
    assert read_lock(tmp_path / "buildfarm.lock") == {}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("version = 1\nimages = 3", "`images` has no sha256"),
        ('version = 1\n[images]\n"a" = "latest"', "`a` has no sha256"),
        ('version = 1\n[images]\n"a" = "sha256:12"', "`a` has no sha256"),
        ("version = 2\n[images]", "is of version 2"),
        ("", "is of version None"),
        ("<<<<<<< ours", "is no TOML"),
    ],
)
def test_a_broken_lock_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "buildfarm.lock"
    path.write_text(text)
    with pytest.raises(UsageError, match=reason) as wrong:
        read_lock(path)
    assert wrong.value.where == str(path)


def test_refreshing_asks_for_each_image_and_keeps_the_others(tmp_path: Path) -> None:
    path = tmp_path / "buildfarm.lock"
    with running_registry() as registry:
        moved, fresh = registry.add("a:1"), registry.add("b:1")
        gone = f"{registry.address}/gone:1"
        write_lock(path, {moved: ONE, gone: TWO, "not/asked": ONE})
        problems = refresh_lock(path, [moved, fresh, gone])
        assert read_lock(path) == {
            moved: registry.digest_of(moved),
            fresh: registry.digest_of(fresh),
            gone: TWO,
            "not/asked": ONE,
        }
    assert [problem.where for problem in problems] == [gone]


def test_refreshing_again_changes_no_byte(tmp_path: Path) -> None:
    path = tmp_path / "buildfarm.lock"
    with running_registry() as registry:
        images = [registry.add("b:1"), registry.add("a:1")]
        refresh_lock(path, images)
        first = path.read_bytes()
        refresh_lock(path, reversed(images))
    assert path.read_bytes() == first
