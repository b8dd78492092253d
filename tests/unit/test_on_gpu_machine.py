"""tests/full/on-gpu-machine with a stand-in for Python: its steps, its time limit and its exit code. Needs no GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import ROOT, Ran, run

STEPS = ["install", "machine", "defects", "gate-toy", "tests-diffrast", "tests-ms_deform_attn", "speed"]


def on_gpu_machine(folder: Path, python: str, **variables: str) -> tuple[Ran, dict[str, str]]:
    """Run the script; return the run, and what the summary says of each step."""
    for name, text in (("python", python), ("nvidia-smi", "echo NVIDIA H100, 580.65.06, 9.0")):
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    files = folder / "files"
    files.mkdir()
    (files / "toy.pyz").touch()
    env = {"PYTHON": str(folder / "python"), "PATH": f"{folder}:/usr/bin:/bin", **variables}
    ran = run(ROOT / "tests/full/on-gpu-machine", files, folder / "out", env=env)
    lines = (folder / "out" / "summary").read_text().splitlines()
    return ran, dict(line.split(": ", 1) for line in lines)


def test_every_step_runs_and_a_missing_tool_is_a_failure(tmp_path: Path) -> None:
    ran, summary = on_gpu_machine(tmp_path, 'echo "CI is $CI"')
    assert (ran.code, list(summary)) == (0, STEPS), ran.all
    assert {text.split("; ")[1] for step, text in summary.items() if step != "machine"} == {"CI is true"}


@pytest.mark.parametrize("limits", [{"TOTAL": "4"}, {"LIMIT": "1", "TOTAL": "4"}])
def test_the_time_of_all_steps_is_limited(tmp_path: Path, limits: dict[str, str]) -> None:
    ran, summary = on_gpu_machine(tmp_path, "sleep 600", **limits)
    assert ran.code == 1
    assert list(summary) == STEPS
    assert summary["install"].startswith("exit code 124")
    assert summary["speed"] == f"not run: {limits['TOTAL']} s are over"
