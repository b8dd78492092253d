"""When each running build was in which stage."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StageTime:
    """One stage of one build.

    Attributes:
        build: the name of the build, or of what is tested.
        stage: the text of the stage, such as `compile`.
        start: when it started, in seconds of a clock.
        end: when it ended, in seconds of the same clock.
        machine: the worker that did it; empty: this machine.

    """

    build: str
    stage: str
    start: float
    end: float
    machine: str = ""
