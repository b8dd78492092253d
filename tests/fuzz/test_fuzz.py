"""A minute of fuzzing, with the same inputs in every run. `python -m tests.fuzz` runs more of them."""

from pathlib import Path

import pytest

from tests.fuzz.__main__ import TARGETS_BY_NAME, fuzz

SECONDS = 15


@pytest.mark.parametrize("name", TARGETS_BY_NAME)
def test_no_input_finds_a_bug(name: str) -> None:
    result = fuzz(name, seed=1, count=1500, seconds=SECONDS)
    print(result.table())
    assert result.count > 10
    assert not result.faults, result.table()


def test_a_bug_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def escape(_archive: Path, target: Path) -> None:
        (target.parent / "escape").write_text("x")

    def crash(_archive: Path, _target: Path) -> None:
        raise IndexError

    for unpack, error in ((escape, "EscapeError"), (crash, "IndexError")):
        monkeypatch.setattr("tests.fuzz.targets.unpack", unpack)
        assert error in fuzz("sdists", seed=1, count=3).table()
