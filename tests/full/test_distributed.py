"""Builds on workers of a real Dask scheduler: parts are killed, disks are full, versions differ, stores are pruned."""

import contextlib
import json
import os
import shutil
import signal
import socket
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from tests.conftest import BUILDFARM, ROOT, is_running, run, wait_until
from tests.fixtures.container_farm import small_disk
from tests.fixtures.distributed_farm import INT, KILL, TERM, DistributedFarm, Program, distributed_farm
from tests.real.commands.distributed.test_task_processes import certificates
from tests.real.commands.test_build import pruning

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
    again = run(sys.executable, "-c", BUILD_HERE, *farm._argv("here", "dist-here")[1:], cwd=farm.project.root)
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


def test_after_a_killed_scheduler_the_second_run_builds_what_is_missing(farm: DistributedFarm) -> None:
    client, busy = in_the_middle(farm)
    first = farm.processes(busy)
    farm.scheduler.end(KILL)
    assert "the scheduler ended" in failed(client, 4)
    for worker in farm.workers.values():
        assert worker.code() == 4, worker.text
        worker.says("lost the scheduler")
    gone(first)
    farm.start_scheduler()
    for name in ("alpha", "beta"):
        farm.start_worker(name)
    farm.release("held")
    farm.build()
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


TLS = "DASK_DISTRIBUTED__COMM__TLS__"


def failed(client: Program, code: int) -> str:
    """The output of a client that ends with this code and one error, without a traceback and lines of Dask."""
    assert client.code() == code, client.text
    for words in ("Traceback", "- distributed", "Warning:", "asyncio"):
        assert words not in client.text, client.text
    assert client.text.count("error[") == 1, client.text
    return " ".join(client.text.split())


@contextlib.contextmanager
def stalling_proxy(port: int, answered: int) -> Iterator[tuple[int, list[socket.socket]]]:
    """A proxy of a port that forwards so many connections, and leaves each later one without an answer."""
    listener, made = socket.create_server(("127.0.0.1", 0)), list[socket.socket]()

    def forward(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def accept() -> None:
        with contextlib.suppress(OSError):  # the end
            while True:
                made.append(near := stack.enter_context(listener.accept()[0]))
                if len(made) <= answered:
                    far = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
                    for pair in ((near, far), (far, near)):
                        threading.Thread(target=forward, args=pair, daemon=True).start()

    with listener, contextlib.ExitStack() as stack:
        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1], made
        listener.shutdown(socket.SHUT_RDWR)


def test_a_signal_ends_a_worker_that_connects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler answers the two connections that ask whether it is there, and no other."""
    with (
        distributed_farm(tmp_path, monkeypatch) as farm,
        stalling_proxy(urlsplit(farm.address).port or 0, 2) as (port, made),
    ):
        direct, farm.address = farm.address, f"tcp://127.0.0.1:{port}"
        worker = farm.start_worker("alpha", wait=False)
        wait_until(lambda: len(made) > 2, "the connection of Dask's worker")
        farm.address = direct
        assert worker.end() == 0, worker.text
        assert "connected to" not in worker.text


def test_a_full_disk_of_a_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with distributed_farm(tmp_path, monkeypatch) as farm, small_disk(farm.store("full")):
        worker = farm.start_worker("full")
        fill(farm.store("full") / "filler")
        farm.recipes("one_ext")
        said = failed(farm.start_client(), 1)
        assert "disk" in said, said
        assert "is full" in said, said
        farm.start_worker("beta")
        said = farm.build("--worker-timeout", "300")
        assert said.count("another worker gets it") <= 1, said
        assert len(farm.wheels()) == 1
        worker.end()


def fill(file: Path) -> None:
    """Write a file until the disk is full."""
    with file.open("wb", buffering=0) as stream, contextlib.suppress(OSError):
        while True:
            stream.write(bytes(1 << 12))


def test_a_build_that_kills_its_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A confined build cannot do it itself, but the kernel does it for a build that uses up the memory."""
    with distributed_farm(tmp_path, monkeypatch, "alpha", allowed_failures=1) as farm:
        farm.recipes("one_ext")
        farm.hold("one_ext")
        client = farm.start_client()
        for times in (1, 2):
            farm.compiling("one_ext", times)
            os.kill(farm.workers["alpha"].dask_worker(), signal.SIGKILL)
        assert "2 workers ended while they had this task" in failed(client, 1)


def test_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, others = tmp_path / "ours", tmp_path / "others"
    for folder in (ours, others):
        folder.mkdir()
        certificates(folder)
    with distributed_farm(tmp_path, monkeypatch) as farm:
        farm.scheduler.end()
        words = ("--tls-ca-file", ours / "ca.pem", "--tls-cert", ours / "machine1.pem")
        farm.start_scheduler("--protocol", "tls", *words, "--tls-key", ours / "machine1.key")
        assert farm.address.startswith("tls://")
        farm.recipes("one_ext")
        plain = farm.address.replace("tls:", "tcp:")

        said = failed(farm.start_client(), 4)
        assert "needs a certificate" in said, said
        said = failed(farm.start_client("--scheduler", plain), 4)
        assert "it wants TLS" in said, said
        said = failed(farm.start_worker("plain", "--wait", "0", wait=False), 4)
        assert "needs a certificate" in said, said
        use(monkeypatch, others)
        said = failed(farm.start_client(), 4)
        assert "the certificate of the scheduler is not trusted" in said, said
        said = failed(farm.start_worker("other", "--wait", "0", wait=False), 4)
        assert "the certificate of the scheduler is not trusted" in said, said
        monkeypatch.setenv(f"{TLS}CA_FILE", str(ours / "ca.pem"))
        said = failed(farm.start_client(), 4)
        assert "does not accept the certificate" in said, said

        use(monkeypatch, ours)
        farm.start_worker("alpha")
        farm.build()
        assert len(farm.wheels()) == 1


def use(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Tell Dask in new processes to use these certificates."""
    monkeypatch.setenv(f"{TLS}CA_FILE", str(folder / "ca.pem"))
    for role in ("WORKER", "CLIENT"):
        monkeypatch.setenv(f"{TLS}{role}__CERT", str(folder / "machine2.pem"))
        monkeypatch.setenv(f"{TLS}{role}__KEY", str(folder / "machine2.key"))


def test_workers_of_another_version_and_without_buildfarm_get_no_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with distributed_farm(tmp_path, monkeypatch) as farm:
        copy = tmp_path / "copy"
        shutil.copytree(ROOT / "builder", copy / "builder", ignore=shutil.ignore_patterns("__pycache__"))
        with (copy / "builder/formats.py").open("a") as stream:
            stream.write("PROTOCOL = 0\n")
        argv = ("worker", farm.address, "--store", farm.store("other"), "--name", "other", "--builds", "1")
        env = {"PYTHONPATH": f"{copy}{os.pathsep}{farm.folder / 'canned'}"}
        farm.workers["other"] = farm._start("other", BUILDFARM, *argv, env=env)
        dask = Path(sys.executable).with_name("dask")
        words = ("--host", "127.0.0.1", "--no-dashboard", "--local-directory", tmp_path / "dask-scratch")
        farm.workers["bare"] = farm._start("bare", dask, "worker", farm.address, "--name", "bare", *words)
        farm.workers["other"].says("connected to")
        farm.workers["bare"].says("Starting established connection")
        farm.recipes("one_ext")
        said = failed(farm.start_client("--worker-timeout", "3"), 4)
        assert "the worker other has" in said, said
        assert "the worker bare has no buildfarm" in said, said

        farm.start_worker("alpha")
        said = " ".join(farm.build("--worker-timeout", "300").split())
        assert said.count("the worker other has") == 1, said
        assert said.count("the worker bare has no buildfarm") == 1, said
        assert len(farm.wheels()) == 1
        assert not list((farm.store("other") / "builds").glob("*"))


def test_no_worker_can_run_a_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nothing")
    with distributed_farm(tmp_path, monkeypatch, "alpha") as farm:
        farm.recipes("one_ext", "two_ext")
        said = failed(farm.start_client("--executor", "docker", "--worker-timeout", "3"), 4)
        assert "no worker can run this build: alpha has no Docker" in said, said
        for name in ("one_ext", "two_ext"):
            recipe = farm.project.root / name / "extension.yaml"
            recipe.write_text(recipe.read_text().replace("memory_per_job: 16MiB", "memory_per_job: 90000GiB"))
        said = failed(farm.start_client("--worker-timeout", "3"), 4)
        assert "alpha has less than" in said, said
        farm.workers["alpha"].end()
        said = failed(farm.start_client("--worker-timeout", "3"), 4)
        assert "is connected to the scheduler" in said, said


NAMES = ("one_ext", "two_ext")


def empty(store: Path) -> bool:
    """Whether a store has no wheel and no note of a worker any more."""
    return not any(path for folder in ("builds", "remote", "received") for path in (store / folder).glob("*"))


def test_prune_disturbs_no_running_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with distributed_farm(tmp_path, monkeypatch, "alpha", "beta") as farm:
        farm.recipes(*NAMES)
        outputs = {name: tmp_path / f"pruned-{name}" for name in ("alpha", "beta")}
        with pruning(farm.store("alpha"), outputs["alpha"], 1), pruning(farm.store("beta"), outputs["beta"], 1):
            farm.build()
            farm.build(store="other", dist="other")
            kept = [path.name for name in outputs for path in farm.store(name).glob("builds/*/*.whl")]
            for name in ("alpha", "beta"):
                assert len(list((farm.store(name) / "work").glob("dask-*"))) == 1
        # No wheel was deleted and compiled again. Dask chooses the workers: a wheel may be on both.
        assert [farm.compiles(name) for name in NAMES] == [sum(name in wheel for wheel in kept) for name in NAMES]
        assert farm.wheels() == farm.wheels("other")
        assert len(farm.wheels()) == len(NAMES)
        lines = {line for output in outputs.values() for line in output.read_text().splitlines()}
        assert "in use" in lines
        for name in ("alpha", "beta"):
            farm.workers[name].end()
            with pruning(farm.store(name), outputs[name]):
                wait_until(lambda store=farm.store(name): empty(store), "empty")  # type: ignore[misc] # noqa: B008
