"""What a build or a proof needs of a worker, and which starts first."""

from __future__ import annotations

import json
from collections.abc import Iterable, Set
from contextlib import suppress
from pathlib import Path

from builder.commands.distributed.cluster import Need
from builder.commands.distributed.protocol import (
    BUILDS,
    MEMORY,
    PROOF_MEMORY,
    PROOFS,
    Answer,
    BuildTask,
    ProofTask,
    SmokeTask,
)
from builder.commands.distributed.worker.facts import compile_resource
from builder.commands.run_settings import Settings
from builder.gate.amounts import size_text
from builder.matrix.config import Recipe
from builder.matrix.plan import Build
from builder.store import Store, write_atomic
from builder.untrusted import JsonError, read_json

#: Seconds that are assumed of a build nobody has seen.
UNKNOWN_SECONDS = 60.0
#: More than the seconds of any build.
_FIRST = 1_000_000


class Uses:
    """How long builds took and how much memory they used, from earlier runs of this client."""

    def __init__(self, store: Store) -> None:
        self._folder = store.root / "remote"

    def remember(self, build: Build, answer: Answer) -> None:
        """Note what a build used, unless it compiled nothing."""
        if answer.wheel is not None and not answer.reused:
            data = {"seconds": answer.seconds, "memory": answer.memory}
            write_atomic(self._file(build), json.dumps(data).encode())

    def of(self, build: Build, recipe: Recipe) -> tuple[float, int]:
        """Seconds and bytes; without an earlier build, the recipe's figure for one compiler."""
        with suppress(OSError, JsonError):
            seconds, memory = read_json(self._file(build), lambda data: (float(data["seconds"]), int(data["memory"])))
            return seconds, memory or recipe.memory_per_job
        return UNKNOWN_SECONDS, recipe.memory_per_job

    def _file(self, build: Build) -> Path:
        return self._folder / f"use-{build.extension}-{build.cuda.variant}.json"


def first_builds(tasks: Iterable[BuildTask], uses: Uses) -> frozenset[str]:
    """The digests of the shortest tenth of these builds. They start first, so that workers soon have proofs to run."""
    ordered = sorted(tasks, key=lambda task: uses.of(task.build, task.recipe)[0])
    return frozenset(task.digest for task in ordered[: len(ordered) // 10])


def need_of_build(task: BuildTask, uses: Uses, first: Set[str] = frozenset()) -> Need:
    """One of the worker's builds, memory, and a compiler for the CUDA version.

    The longest build starts first, except that those in `first` start before all others.
    """
    seconds, memory = uses.of(task.build, task.recipe)
    resource = compile_resource(task.settings.executor, task.build.cuda, minor_mismatch=task.settings.minor_mismatch)
    return Need(
        {BUILDS: 1, MEMORY: memory, resource: 1},
        priority=round(seconds) + (_FIRST if task.digest in first else 0),
        reasons={MEMORY: f"less than {size_text(memory)} of memory", resource: _lack(task.settings, task.build)},
    )


def need_of_proof(task: ProofTask | SmokeTask) -> Need:
    """The worker's op gate, memory, and the GPU model if the task names one."""
    memory = max(PROOF_MEMORY, task.recipe.memory_per_job)
    resources: dict[str, float] = {PROOFS: 1, MEMORY: memory}
    reasons = {MEMORY: f"less than {size_text(memory)} of memory"}
    if task.gpu:
        resources[f"gpu-{task.gpu}"] = 1
        reasons[f"gpu-{task.gpu}"] = f"no GPU of the model {task.gpu}"
    if task.in_docker:
        resources["docker"] = 1
        reasons["docker"] = "no Docker"
    # A finished wheel is tested before another one is built. Proofs that fewer workers can run come first.
    return Need(resources, priority=2 * _FIRST + len(reasons), reasons=reasons, waits=not task.gpu)


def _lack(settings: Settings, build: Build) -> str:
    toolkit = f"no CUDA {build.cuda} toolkit"
    return {"docker": "no Docker", "local": toolkit}.get(settings.executor, f"{toolkit} and no Docker")
