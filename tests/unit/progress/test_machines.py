"""The lines of builds on workers: with the machine, on a narrow terminal too."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from builder.progress import display
from builder.progress.display import Progress, StageTime
from builder.timeline import Timeline
from tests.unit.fake_clock import FakeClock

NAME, MACHINE = "ops-1.0-cpython-torch2.11.0-cu130-cp312", "gpu-node-0123.rack-7.very-long-machine-name.lab.example"


def shown(progress: Progress, width: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=True, color_system=None)
    monkeypatch.setattr(display, "console", console)
    console.print(progress)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_a_long_name_of_a_machine_hides_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    progress = Progress(FakeClock())
    progress.start(NAME)
    progress.stage(NAME, "compile", MACHINE)
    (line,) = shown(progress, 140, monkeypatch)
    assert line == f"{NAME}  compile (0:00) on {MACHINE}"
    name, state = shown(progress, 50, monkeypatch)
    assert name == NAME
    assert state.startswith("  compile (0:00) on gpu-node-0123")
    assert len(state) == 50


def test_a_stage_keeps_its_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(display, "SHORTEST_STAGE", 0)
    progress = Progress()
    progress.start(NAME)
    progress.stage(NAME, "compile", "w1")
    progress.stage(NAME, "copy")
    progress.finish(NAME, "")
    assert [(stage.stage, stage.machine) for stage in progress.stages()] == [
        ("waiting", ""),
        ("compile", "w1"),
        ("copy", ""),
    ]


def test_a_run_here_has_no_machines() -> None:
    here, there = StageTime("a", "compile", 0, 1), StageTime("a", "compile", 0, 1, "w1")
    assert Timeline((here,)).machines == ()
    assert Timeline((here, there)).machines == ("w1",)
