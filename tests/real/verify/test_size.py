"""`verify --max-size`, and `max_size` of a recipe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from builder.cli.app import app
from builder.errors import Exit, UsageError
from tests.real.verify.corpus import NATIVE, SASS, Lib, Wheel


def verify(wheel: Path, store: Path, limit: str) -> tuple[int, list[dict[str, Any]]]:
    """The exit code, and the proofs of the check `size`."""
    done = CliRunner().invoke(app, ["verify", str(wheel), "--max-size", limit, "--store", str(store), "--json"])
    assert done.stdout, done.exception
    (one,) = json.loads(done.stdout)
    return done.exit_code, [proof for proof in one["proofs"] if proof["check"] == "size"]


def test_failure_names_the_largest_libraries_and_their_architectures(stubs: Path, store: Path, tmp_path: Path) -> None:
    more = Lib("int table[200000] = {1};\n" + Lib().source, gpu=(*NATIVE, (SASS, 75, 0)))
    wheel = Wheel(libs={**Wheel().libs, "ops/_large.so": more}).write(tmp_path, stubs)
    code, (proof,) = verify(wheel, store, "1KiB")
    assert (code, proof["verdict"]) == (Exit.FAILED, "failed")
    reason = proof["reason"]
    assert "more than its limit of 1 KiB; unpacked, the largest libraries are ops/_large.so with 79" in reason
    assert "(GPU code: sm_" in reason
    assert reason.index("ops/_large.so") < reason.index("ops/_C.")


def test_wheel_within_the_limit(stubs: Path, store: Path, tmp_path: Path) -> None:
    code, (proof,) = verify(Wheel().write(tmp_path, stubs), store, "300MB")
    assert (code, proof["verdict"]) == (Exit.OK, "passed")
    assert proof["reason"].endswith("of at most 286.1 MiB")


def test_no_limit_no_check(stubs: Path, store: Path, tmp_path: Path) -> None:
    assert verify(Wheel().write(tmp_path, stubs), store, "") == (Exit.OK, [])


def test_unreadable_limit(store: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["verify", str(tmp_path), "--max-size", "large", "--store", str(store)])
    assert isinstance(done.exception, UsageError)
    assert "is not a size" in str(done.exception)
