"""Builds on workers of a real Dask scheduler, with every part killed in the middle of a compile."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.conftest import BUILDFARM, is_running, run, wait_until
from tests.fixtures.distributed_farm import INT, KILL, TERM, DistributedFarm, Program, distributed_farm

pytestmark = pytest.mark.slow

#: One GPU, for a worker that looks at its machine.
NVIDIA_SMI = """\
#!/bin/sh
case "$1" in
*name,compute_cap,driver_version*) echo "NVIDIA H200, 9.0, 570.1" ;;
*) exit 1 ;;
esac
"""

#: Builds as `buildfarm build` does in this process, and prints which packages of Dask it imported.
BUILD_HERE = """\
import atexit, sys
from builder.__main__ import main
atexit.register(lambda: print("imported:", sorted({"dask", "distributed"} & sys.modules.keys())))
sys.argv[0] = "buildfarm"
sys.exit(main())
"""


@pytest.fixture
def farm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DistributedFarm]:
    """A scheduler and two workers."""
    with distributed_farm(tmp_path, monkeypatch, "alpha", "beta") as parts:
        yield parts


def in_the_middle(farm: DistributedFarm) -> tuple[Program, str]:
    """Start a client; return it and the worker that compiles `held`, after `done` is in the client's store."""
    farm.recipes("done", "held")
    farm.hold("held")
    client = farm.start_client()
    farm.compiling("held")
    client.says(f"done-1.0-cpython-torch2.11.0-cu130-{tag()}: built")
    busy = [name for name in farm.workers if farm.processes(name)]
    assert len(busy) == 1, busy
    return client, busy[0]


def tag() -> str:
    """The Python of the small project in the names of builds."""
    return f"cp{sys.version_info[0]}{sys.version_info[1]}"


def gone(processes: list[psutil.Process]) -> None:
    """Wait until none of these processes runs."""
    assert processes
    wait_until(lambda: not any(map(is_running, processes)), "an end of every process of the build")


def built_once_more(farm: DistributedFarm) -> None:
    """Check that `held` was compiled a second time, after the first was ended, and nothing else was repeated."""
    assert {name: farm.compiles(name) for name in ("done", "held")} == {"done": 1, "held": 2}
    assert {name: farm.compiles(name, "end") for name in ("done", "held")} == {"done": 1, "held": 1}


def test_workers_give_the_wheels_of_a_local_run_and_the_second_run_compiles_nothing(farm: DistributedFarm) -> None:
    names = ("one_ext", "two_ext", "three_ext", "four_ext")
    farm.recipes(*names)
    said = farm.build()
    assert "on alpha" in said
    assert "on beta" in said
    builds = json.loads((farm.folder / "dist/report.json").read_text())["builds"]
    for build in builds:
        verdicts = Counter(proof["verdict"] for proof in build["proofs"])
        assert not verdicts["failed"]
        assert {"import", "ops", "linkage"} <= {p["check"] for p in build["proofs"] if p["verdict"] == "passed"}
    farm.build()
    assert [farm.compiles(name) for name in names] == [1] * len(names)
    here = farm.start_here()
    assert here.code() == 0, here.text
    assert [farm.compiles(name) for name in names] == [2] * len(names)
    assert len(farm.wheels()) == len(names)
    assert farm.wheels() == farm.wheels("dist-here")
    words: list[str | Path] = [
        "build",
        "--store",
        farm.store("here"),
        "--dist",
        farm.folder / "dist-here",
        "--executor",
        "local",
    ]
    again = run(sys.executable, "-c", BUILD_HERE, *words, cwd=farm.project.root)
    assert (again.code, again.out.splitlines()[-1]) == (0, "imported: []"), again.all


@pytest.mark.parametrize("part", ["dask worker", "killed worker", "told to end"])
def test_a_build_of_a_worker_that_ends_runs_again_and_no_other(farm: DistributedFarm, part: str) -> None:
    client, busy = in_the_middle(farm)
    first = farm.processes(busy)
    worker = farm.workers[busy]
    if part == "dask worker":
        os.kill(worker.dask_worker(), signal.SIGKILL)
    else:
        assert worker.end(KILL if part == "killed worker" else TERM) in (0, -KILL), worker.text
    gone(first)
    farm.compiling("held", 2)
    farm.release("held")
    assert client.code() == 0, client.text
    built_once_more(farm)
    assert len(farm.wheels()) == 2


def test_a_killed_scheduler_that_is_started_again_gets_its_workers_and_the_client_back(farm: DistributedFarm) -> None:
    client, busy = in_the_middle(farm)
    first = farm.processes(busy)
    farm.scheduler.end(KILL)
    client.says("lost the scheduler")
    gone(first)
    farm.start_scheduler()
    client.says("again")
    for worker in farm.workers.values():
        worker.says("connected to", times=2)
    farm.compiling("held", 2)
    farm.release("held")
    assert client.code() == 0, client.text
    built_once_more(farm)
    assert len(farm.wheels()) == 2


def test_after_a_killed_client_its_build_ends_and_its_second_run_builds_what_is_missing(farm: DistributedFarm) -> None:
    client, _ = in_the_middle(farm)
    client.end(KILL)
    farm.nothing_left()
    farm.release("held")
    said = farm.build()
    assert f"done-1.0-cpython-torch2.11.0-cu130-{tag()}: already built" in said, said
    built_once_more(farm)
    assert len(farm.wheels()) == 2


def test_an_interrupted_client_ends_its_builds_on_every_worker(farm: DistributedFarm) -> None:
    client, _ = in_the_middle(farm)
    assert client.end(INT) == 130, client.text
    farm.nothing_left()
    assert farm.compiles("held", "end") == 0
    assert all(worker.process.poll() is None for worker in farm.workers.values())


def test_two_clients_with_overlapping_plans_make_each_build_once(farm: DistributedFarm) -> None:
    farm.recipes("only_first", "both", "only_second")
    farm.hold("both")
    first = farm.start_client("--ext", "only_first", "--ext", "both", store="first", dist="dist-first")
    second = farm.start_client("--ext", "both", "--ext", "only_second", store="second", dist="dist-second")
    farm.compiling("both")
    for client, name in ((first, "only_first"), (second, "only_second")):
        client.says(f"{name}-1.0-cpython-torch2.11.0-cu130-{tag()}: built")
    farm.release("both")
    assert first.code() == 0, first.text
    assert second.code() == 0, second.text
    assert [farm.compiles(name) for name in ("only_first", "both", "only_second")] == [1, 1, 1]
    wheels = farm.wheels("dist-first"), farm.wheels("dist-second")
    (common,) = wheels[0].keys() & wheels[1].keys()
    assert common.startswith("both-")
    assert wheels[0][common] == wheels[1][common]


def test_a_worker_with_a_gpu_tests_a_wheel_that_had_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "nvidia-smi").write_text(NVIDIA_SMI)
    (tools / "nvidia-smi").chmod(0o755)
    with distributed_farm(tmp_path, monkeypatch) as farm:
        farm.recipes("one_ext")
        farm.start_worker("plain")
        farm.build()
        monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
        farm.start_worker("with-gpu")
        said = farm.build()  # the wheel goes from the client to the other worker
        assert ": already built, checked" in said
        assert ("on with-gpu" in said, "on plain" in said) == (True, False), said
        page = farm.folder / "report.html"
        assert run(BUILDFARM, "report", "--store", farm.store("client"), "--out", page, cwd=farm.project.root).code == 0
        assert '<th scope="col">worker</th>' in page.read_text()
