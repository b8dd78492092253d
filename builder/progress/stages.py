"""When each running build was in which stage."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StageTime:
    """One stage of one build."""

    #: The name of the build, or of what is tested.
    build: str
    #: The text of the stage, such as `compile`.
    stage: str
    #: When it started, in seconds of a clock.
    start: float
    #: When it ended, in seconds of the same clock.
    end: float
    #: The worker that did it; empty: this machine.
    machine: str = ""
