"""What client and workers send each other, and what a task needs of a worker."""

from __future__ import annotations

import pickle
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from builder.commands.building.executor_choice import RunSettings
from builder.commands.distributed import protocol
from builder.commands.distributed.client import RemoteRun
from builder.commands.distributed.cluster import missing, nobody
from builder.commands.distributed.options import WorkersOptions
from builder.commands.distributed.protocol import (
    BUILDS,
    MEMORY,
    PLUGIN,
    PROOFS,
    WorkerAnswer,
    compile_resource,
    version_resource,
    version_text,
)
from builder.errors import BuildError, BuildfarmError, Code, MissingToolError, UsageError
from builder.matrix.axes import Cuda
from builder.proofs.cells.prover import WheelProver
from builder.store import Store
from tests.unit.commands.distributed.made_up import BUILD_TASK, CELL, PROOF_TASK, RECIPE, SETTINGS, WHEEL
from tests.unit.wheels.make_record import BUILD


def test_the_key_of_checks_covers_what_decides_them() -> None:
    task = PROOF_TASK
    others = [
        replace(task, basis="other"),
        replace(task, again=not task.again),
        replace(task, wheel=replace(WHEEL, sha256="b" * 64)),
        replace(task, settings=replace(SETTINGS, executor="docker")),
    ]
    assert len({task.key, *(other.key for other in others)}) == len(others) + 1


def test_keys_begin_with_what_dask_averages_over() -> None:
    assert BUILD_TASK.key.rpartition("-")[0] == "build_ops_cu130"
    assert PROOF_TASK.key.rpartition("-")[0] == f"prove_ops_{CELL}"


def test_a_build_without_the_compiler_cache_is_another_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wheel that a worker made with the cache must not answer `--no-compiler-cache`."""
    monkeypatch.setattr("builder.commands.distributed.client.source_digest", lambda _: "source")

    def digest(settings: RunSettings) -> str:
        options = WorkersOptions(scheduler="tcp://127.0.0.1:1")
        run = RemoteRun(Store(tmp_path), cast("WheelProver", None), {BUILD.extension: RECIPE}, settings, options)
        return run._task(BUILD).digest

    assert digest(SETTINGS) == digest(replace(SETTINGS, compiler_cache=True))
    assert digest(SETTINGS) != digest(replace(SETTINGS, compiler_cache=False))


def test_tasks_travel() -> None:
    for task in (BUILD_TASK, PROOF_TASK):
        assert pickle.loads(pickle.dumps(task)) == task


@pytest.mark.parametrize(
    "error",
    [
        BuildError("it failed", stage="compile", where="ops", hints=["read it"], excerpt=("error: x",)),
        MissingToolError("no nvcc", Code.TOOLKIT_MISSING, where="cu130", hints=["install it"]),
        UsageError("no such op", Code.VALUE_INVALID, where="cases.py"),
        BuildfarmError("the disk is full", Code.DISK_FULL),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_comes_back_as_it_was(error: BuildfarmError) -> None:
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is type(error)
    assert (str(back), back.exit_code, vars(back)) == (str(error), error.exit_code, vars(error))


def test_the_version_names_the_formats(monkeypatch: pytest.MonkeyPatch) -> None:
    assert version_resource().rpartition("-")[2] in version_text()
    before = version_resource()
    monkeypatch.setattr(protocol, "PROTOCOL", 0)
    assert version_resource() != before


def worker(name: str, **resources: float) -> dict[str, object]:
    return {"resources": resources, PLUGIN: {"name": name}}


def test_a_message_names_what_workers_lack_once() -> None:
    task = replace(PROOF_TASK, settings=replace(SETTINGS, executor="docker"))
    enough = {PROOFS: 1.0, MEMORY: 1e12}
    workers = {str(at): worker(f"w{at}", **enough) for at in range(5)}
    workers["z"] = worker("only-builds", **{BUILDS: 1.0})
    workers["y"] = worker("small", **{PROOFS: 1.0, "docker": 1.0})
    error = missing(task, workers, ())
    first, _, second = error.sentence.removeprefix("no worker can run these checks: ").partition("; ")
    assert first == "w0, w1, w2 and 2 more have no Docker"
    assert second.startswith("small has ")
    assert error.exit_code == MissingToolError("", Code.TOOLKIT_MISSING).exit_code


def test_the_error_of_workers_that_failed_names_them() -> None:
    full = BuildfarmError("the disk of the worker is full", Code.DISK_FULL, where="/store", hints=["look"])
    error = nobody(
        BUILD_TASK, [WorkerAnswer(name, name, deepcopy(full), machine_fault=True) for name in ("w1", "w2")]
    ).error
    reason = "/store: the disk of the worker is full"
    assert error is not None
    assert str(error) == f"no worker could run this build: w1: {reason}; w2: {reason}"
    assert (error.code, error.hints) == (Code.DISK_FULL, ("on w2: look",))


def test_checks_need_what_they_use() -> None:
    in_docker = replace(PROOF_TASK, settings=replace(SETTINGS, executor="docker"))
    assert in_docker.needs["docker"][0] == 1
    assert "docker" not in PROOF_TASK.needs
    assert BUILD_TASK.priority < PROOF_TASK.priority < in_docker.priority


def test_a_build_needs_a_compiler() -> None:
    found = [compile_resource(executor, Cuda(13, 0)) for executor in ("auto", "local", "docker")]
    assert found == ["any-cu130", "local-cu130", "docker"]
