"""The command line: exit codes scripts may rely on, data on stdout, talk on stderr."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builder import __version__, farm
from builder.__main__ import _run
from builder.errors import (
    BuildError,
    Exit,
    FarmError,
    MissingToolError,
    NothingSelectedError,
    PreflightError,
    UsageError,
)
from builder.farm import Options
from builder.log import say
from builder.matrix.axes import AbiClass, Arch, Cell, Cuda, Platform, Python, Torch
from builder.matrix.plan import Build, Plan
from builder.result import Result
from tests.conftest import ROOT

Call = Callable[..., tuple[int, str, str]]

BUILD = Build(
    "ops",
    "1.0",
    AbiClass.CPYTHON,
    Torch(2, 11, 0),
    Cuda(13, 0),
    (Python(3, 12),),
    (Arch(9, 0),),
    Platform.LINUX_X86_64,
    (Cell.parse("torch2.11.0-cu130-cp312"),),
)
FAILED = Result(BUILD, None, BuildError("a.cu:3: error", stage="compile", hints=["look"]), reused=False, seconds=1.0)


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """`buildfarm` in this process: exit code, stdout, stderr."""

    def call(*words: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["buildfarm", *map(str, words)])
        code = _run()
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture
def matrix(tmp_path: Path) -> Path:
    (tmp_path / "ops").mkdir()
    (tmp_path / "ops" / "extension.yaml").write_text(
        "name: ops\nversion: 1.0\nsource: {path: .}\nabi: cpython\nimports: [ops]\n"
    )
    path = tmp_path / "matrix.yaml"
    path.write_text("torch: [2.11]\ncuda: [13.0]\npython: [3.12]\nextensions: [ops]\n")
    return path


def farm_that(monkeypatch: pytest.MonkeyPatch, ends: BaseException | list[Result]) -> list[Options]:
    """Put another farm behind the command line; answers what it was asked."""
    asked: list[Options] = []

    def run_build(options: Options) -> tuple[Plan, list[Result]]:
        asked.append(options)
        say("building")
        if isinstance(ends, BaseException):
            raise ends
        return Plan((BUILD,), ()), ends

    monkeypatch.setattr(farm, "run_build", run_build)
    return asked


def test_version(call: Call) -> None:
    assert call("--version") == (0, f"buildfarm {__version__}\n", "")


@pytest.mark.parametrize("words", [("--help",), ("plan", "-h"), ("build", "--help")], ids=" ".join)
def test_help(words: tuple[str, ...], call: Call) -> None:
    code, out, err = call(*words)
    assert (code, err) == (0, "")
    assert "buildfarm" in out


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(("plan", "--nonsense"), id="unknown option"),
        pytest.param(("bild",), id="unknown verb"),
        pytest.param(("build", "--jobs", "0"), id="no jobs"),
        pytest.param(("build", "--executor", "cloud"), id="unknown executor"),
        pytest.param(("plan", "--matrix", "nowhere.yaml"), id="no matrix"),
        pytest.param(("plan", "--arch", "sm_90"), id="an arch nobody can read"),
    ],
)
def test_a_wrong_command_line_is_2_and_starts_nothing(words: tuple[str, ...], call: Call) -> None:
    code, out, err = call(*words)
    assert code == Exit.USAGE
    assert out == ""
    assert err
    assert "Traceback" not in err


def test_a_plan_for_a_person_and_for_a_program(call: Call, matrix: Path) -> None:
    code, out, err = call("plan", "--matrix", matrix)
    assert (code, err) == (0, "")
    assert out.startswith("1 build serves 1 cell; 0 cells are skipped.\n")
    code, out, err = call("plan", "--matrix", matrix, "--json")
    assert (code, err) == (0, "")
    assert [build["extension"] for build in json.loads(out)["builds"]] == ["ops"]


def test_a_selection_that_leaves_nothing_is_3(call: Call, matrix: Path) -> None:
    matrix.write_text(matrix.read_text() + "exclude: [{python: 3.12, reason: nobody wants it}]\n")
    code, out, err = call("plan", "--matrix", matrix)
    assert (code, out) == (Exit.NOTHING_SELECTED, "")
    assert "no cell is left of this selection" in err
    assert "hint: nobody wants it" in err


@pytest.mark.parametrize(
    ("ends", "code", "said"),
    [
        (FarmError("it broke", hints=["mend it"]), 1, "error: it broke\n  hint: mend it"),
        (BuildError("it broke", stage="fetch"), 1, "error: it broke"),
        (UsageError("a typo", where="matrix.yaml: torch"), 2, "error: matrix.yaml: torch: a typo"),
        (NothingSelectedError("nothing"), 3, "error: nothing"),
        (MissingToolError("no nvcc"), 4, "error: no nvcc"),
        (PreflightError([UsageError("one"), MissingToolError("two")]), 4, "error: one\nerror: two\n2 problems"),
        (PreflightError([MissingToolError("one"), UsageError("two")]), 4, "error: one\nerror: two\n2 problems"),
        (KeyboardInterrupt(), 130, "interrupted; what was finished is kept"),
        (OSError(errno.ENOSPC, "No space left on device", "/store/x"), 1, "error: the disk is full (/store/x)"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_each_end_has_its_code_and_its_sentence(
    ends: BaseException, code: int, said: str, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[bool] = []
    monkeypatch.setattr("builder.__main__.end_all", lambda: ended.append(True))
    farm_that(monkeypatch, ends)
    got, out, err = call("build")
    assert (got, out) == (code, "")
    assert err.startswith(f"building\n{said}")
    assert bool(ended) == (code == Exit.INTERRUPTED)


def test_a_bug_of_ours_is_shown_as_one(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    farm_that(monkeypatch, RuntimeError("our bug"))
    with pytest.raises(RuntimeError, match="our bug"):
        call("build")


@pytest.mark.parametrize(
    ("results", "code"),
    [
        pytest.param([replace(FAILED, error=None)], 0, id="all well"),
        pytest.param([replace(FAILED, error=None), FAILED], 1, id="one failed"),
        pytest.param([FAILED, replace(FAILED, error=MissingToolError("no torch"))], 4, id="the gravest counts"),
    ],
)
def test_a_run_ends_as_its_worst_build(
    results: list[Result], code: int, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    farm_that(monkeypatch, results)
    assert call("build")[0] == code


def test_with_json_stdout_is_data_and_nothing_else(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    farm_that(monkeypatch, [FAILED])
    code, out, err = call("build", "--json")
    assert code == 1
    (entry,) = json.loads(out)["builds"]
    assert (entry["status"], entry["error"], entry["hints"]) == ("failed", "a.cu:3: error", ["look"])
    assert err == f"building\nerror: {BUILD}: a.cu:3: error\n  hint: look\n"


def test_the_options_reach_the_farm(call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = farm_that(monkeypatch, [])
    monkeypatch.chdir(tmp_path)
    call("build")
    call(
        *("build", "--torch", "2.11", "--torch", "2.12", "--cuda", "13.0", "--python", "3.12", "--ext", "ops"),
        *("--arch", "9.0+PTX,8.0", "--arch", "8.0;8.6", "--executor", "local", "--jobs", "3", "--stand-in"),
        *("--store", "kept", "--dist", "out", "--matrix", "other.yaml"),
    )
    plain, full = asked
    expected: dict[str, Any] = {"executor": "auto", "jobs": None, "stand_in": False, "store": None, "archs": ()}
    assert {name: getattr(plain, name) for name in expected} == expected
    assert (plain.matrix, plain.dist) == (Path("matrix.yaml"), tmp_path / "dist")
    assert full.select.torch == ("2.11", "2.12")
    assert (full.select.cuda, full.select.python, full.select.extensions) == (("13.0",), ("3.12",), ("ops",))
    assert [str(arch) for arch in full.archs] == ["8.0", "8.6", "9.0+PTX"]
    assert (full.executor, full.jobs, full.stand_in) == ("local", 3, True)
    assert (full.store, full.dist, full.matrix) == (Path("kept"), tmp_path / "out", Path("other.yaml"))


def test_a_reader_that_leaves_early_is_no_error() -> None:
    reader = subprocess.Popen(
        [sys.executable, "-m", "builder", "plan", "--explain"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert reader.stdout is not None
    reader.stdout.close()
    assert reader.stderr is not None
    with reader.stderr:
        assert reader.stderr.read() == ""
    assert reader.wait(60) == 0
