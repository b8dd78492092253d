"""What to say when no worker can run a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from builder.commands.distributed.cluster.deaths import DEATHS
from builder.commands.distributed.cluster.window import Need
from builder.commands.distributed.protocol import BUILDS, PLUGIN, PROOFS, Answer, BuildTask, Failure, Task, version_text
from builder.errors import Code
from builder.matrix.compat import and_list

#: How many workers a message names of those that lack the same.
_NAMES = 3
#: The answer for a task that ends its workers.
DEADLY = Answer(
    failure=Failure(
        "BuildfarmError",
        f"{DEATHS} workers ended while they ran it, the last of them without another task",
        Code.WORKER_STOPPED,
        hints=("see whether it ends processes that are not its own, or uses up the memory of the machine",),
    )
)


def missing(task: Task, need: Need, workers: Mapping[str, Mapping[str, Any]], foreign: Sequence[str]) -> Answer:
    """The answer that says what each worker lacks for a task.

    `workers` are those of the same version, and `foreign` is what is to say about the others.
    """
    hints = ["start a worker that can with `buildfarm worker`; `--worker-timeout` says how long to wait for one"]
    lacks: dict[str, list[str]] = {}
    kinds = need.resources.keys() & {BUILDS, PROOFS}
    for worker in workers.values():
        if not kinds <= worker["resources"].keys():
            continue  # the other Dask worker of the same machine
        names = [name for name, amount in need.resources.items() if worker["resources"].get(name, 0) < amount]
        reasons = [need.reasons.get(name, f"too little of {name}") for name in names]
        lacks.setdefault(" and ".join(reasons), []).append(worker[PLUGIN]["name"])
    sentence = f"no worker can run {_name(task)}: {'; '.join(_have(names, reason) for reason, names in lacks.items())}"
    if not lacks:
        sentence = f"no worker with buildfarm {version_text()} is connected to the scheduler"
        if foreign:
            sentence += f": {'; '.join(foreign)}"
            hints = ["install the same version of buildfarm here and on the workers"]
    return Answer(failure=Failure("MissingToolError", sentence, Code.NO_WORKER, hints=tuple(hints)))


def other_version(worker: Mapping[str, Any]) -> str:
    """What is to say about a worker of another version, or without buildfarm."""
    facts = worker.get(PLUGIN)
    name = facts["name"] if facts else worker["name"]
    return f"the worker {name} has {'buildfarm ' + facts['version'] if facts else 'no buildfarm'}"


def _have(names: Sequence[str], lack: str) -> str:
    """`w1 has LACK`, `w1, w2 and 5 others have LACK`."""
    shown, more = sorted(names)[:_NAMES], len(names) - _NAMES
    if more > 0:
        shown.append("1 other" if more == 1 else f"{more} others")
    return f"{and_list(shown)} {'has' if len(names) == 1 else 'have'} {lack}"


def nobody(task: Task, tried: Mapping[str, Answer]) -> Answer:
    """The last answer, with the reasons of all workers that failed."""
    last = list(tried.values())[-1]
    failure = cast("Failure", last.failure)
    sentences = {str(answer.failure.error()) for answer in tried.values() if answer.failure}
    if len(sentences) > 1:
        each = "; ".join(f"{a.machine}: {a.failure.error()}" for a in tried.values() if a.failure)
        return replace(last, failure=replace(failure, sentence=f"no worker could run {_name(task)}: {each}", where=""))
    return last


def _name(task: Task) -> str:
    """A task in an error, which is printed once for all the builds, or cells, that it stops."""
    if isinstance(task, BuildTask):
        return "this build"
    return f"checks for {task.gpu}" if task.gpu else "these checks"
