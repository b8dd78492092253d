"""Clients and workers of a real scheduler: which of them try a task, connections that fail, the documented page."""

import asyncio
import json
import os
import re
import socket
import ssl
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import dask
import distributed  # noqa: F401 - its settings
import pytest
import yaml
from distributed import get_worker

from builder.cli.app import load_command
from builder.commands.distributed import connection
from builder.commands.distributed.cluster import Cluster
from builder.commands.distributed.connection import connect, reach, security_for
from builder.commands.distributed.options import WorkersOptions
from builder.commands.distributed.protocol import BuildTask, CheckTask, Needs, WorkerAnswer
from builder.commands.distributed.worker.service import run_task
from builder.errors import BuildfarmError, Code, Exit
from docs.generate import DOCS
from tests.conftest import BUILDFARM, PATIENCE
from tests.refused import refused
from tests.unit.commands.distributed.made_up import BUILD_TASK, PROOF_TASK, workers

# Dask warns on a busy machine.
pytestmark = pytest.mark.filterwarnings("ignore:Creating scratch directories")


def on_workers(
    folder: Path,
    names: str,
    scenario: Callable[[Cluster], None],
    function: Callable[..., WorkerAnswer] = run_task,
    needs: Needs | None = None,
) -> None:
    """Run a scenario with workers of these names; `function` is what they do in place of a task."""

    def in_a_thread(address: str) -> None:
        cluster = Cluster(address, patience=20, on_stage=lambda *_: None, function=function)
        try:
            scenario(cluster)
        finally:
            cluster.close()

    async def run() -> None:
        async with workers(folder, *names.split(), needs=needs) as (address, _):
            await asyncio.to_thread(in_a_thread, address)

    asyncio.run(asyncio.wait_for(run(), PATIENCE))


def build(_: BuildTask) -> WorkerAnswer:
    """What workers do in place of a build: only `good` has space on its disk."""
    worker = get_worker()
    full = BuildfarmError("the disk is full", Code.DISK_FULL)
    if worker.name == "good":
        return WorkerAnswer(worker.address, "good")
    return WorkerAnswer(worker.address, str(worker.name), full, machine_fault=True)


def test_another_worker_gets_what_the_first_cannot_run(tmp_path: Path) -> None:
    def scenario(cluster: Cluster) -> None:
        answer = cluster.compute(BUILD_TASK, {})
        assert (answer.machine, answer.error) == ("good", None)

    on_workers(tmp_path, "w1 good w2", scenario, build)


def test_three_workers_try_a_task(tmp_path: Path) -> None:
    def scenario(cluster: Cluster) -> None:
        answer = cluster.compute(BUILD_TASK, {})
        assert isinstance(answer.error, BuildfarmError)
        assert answer.error.code == Code.DISK_FULL
        assert str(answer.error).startswith("no worker could run this build: ")
        assert str(answer.error).count(": the disk is full") == 3

    on_workers(tmp_path, "w1 w2 w3 w4", scenario, build)


def test_only_one_worker_gets_a_task_while_it_is_there(tmp_path: Path) -> None:
    def scenario(cluster: Cluster) -> None:
        answers = [cluster.compute(BUILD_TASK, {}, only=address) for address in cluster._workers]
        assert {answer.worker for answer in answers} == set(cluster._workers)
        assert cluster.compute(BUILD_TASK, {}, only="tcp://127.0.0.1:1").worker in cluster._workers

    on_workers(tmp_path, "w1 w2", scenario, lambda _: WorkerAnswer(get_worker().address))


def test_checks_go_to_the_workers_with_a_gpu(tmp_path: Path) -> None:
    def checks(_: CheckTask) -> WorkerAnswer:
        worker = get_worker()
        fault = worker.name == "gpu" and (tmp_path / "full").exists()
        error = BuildfarmError("the disk is full", Code.DISK_FULL) if fault else None
        return WorkerAnswer(worker.address, str(worker.name), error, machine_fault=fault)

    def scenario(cluster: Cluster) -> None:
        again = [replace(PROOF_TASK, basis=str(number)) for number in range(5)]
        assert cluster.has_gpu()
        assert {cluster.compute(task, {}).machine for task in again[:4]} == {"gpu"}
        (tmp_path / "full").touch()
        assert cluster.compute(again[4], {}).machine in {"w1", "w2"}

    on_workers(tmp_path, "w1 gpu w2", scenario, checks, needs=PROOF_TASK.needs)


def check(address: str, *, plain_tcp: bool = False) -> None:
    WorkersOptions(scheduler=address, plain_tcp=plain_tcp).check_workers()


@pytest.mark.parametrize(("listens", "reason"), [(False, "Connect call failed"), (True, "1 s have passed")])
def test_nothing_answers(listens: bool, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "CONNECT_SECONDS", 1.0)
    with socket.socket() as taken:  # so that no other program listens there
        taken.bind(("127.0.0.1", 0))
        if listens:
            taken.listen()
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        with refused(Code.NETWORK_UNREACHABLE, reason) as caught:
            connect(address)
    assert (caught.value.exit_code, caught.value.where) == (Exit.TOOL_MISSING, address)


def test_another_machine_wants_tls_or_an_option() -> None:
    for address, plain in (("tcp://192.0.2.1:8786", True), ("tls://192.0.2.1:8786", False), ("tcp://[::1]:1", False)):
        check(address, plain_tcp=plain)


def test_dask_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builder.commands.distributed.options.find_spec", lambda _: None)
    with refused(Code.PACKAGE_MISSING) as caught:
        check("tcp://127.0.0.1:8786")
    assert caught.value.exit_code is Exit.TOOL_MISSING


@pytest.mark.parametrize("content", [None, "", "no certificate"], ids=["no setting", "no file", "no certificate"])
def test_certificates_that_cannot_be_used(content: str | None, tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    names = ("ca-file", "client.cert", "client.key")
    settings = {} if content is None else {f"distributed.comm.tls.{name}": str(file) for name in names}
    if content:
        file.write_text(content)
    with dask.config.set(settings), refused(Code.CERTIFICATE_NOT_USABLE):
        security_for("tls://127.0.0.1:8786")


def test_plain_tcp_although_the_configuration_requires_tls() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        dask.config.set({"distributed.comm.require-encryption": True}),
        refused(Code.NETWORK_UNREACHABLE, "encryption required by Dask configuration"),
    ):
        connect(f"tcp://127.0.0.1:{listening.getsockname()[1]}")


def test_a_scheduler_without_tls() -> None:
    class Tls:
        def get_connection_args(self, _: str) -> dict[str, object]:
            return {"ssl_context": ssl.create_default_context(), "require_encryption": True}

    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello" * 9)
        await writer.drain()
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(greet, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            with refused(Code.CERTIFICATE_NOT_USABLE) as caught:
                await reach(f"tls://127.0.0.1:{port}", cast("Any", Tls()))
            assert any("--protocol tls" in hint for hint in caught.value.hints)

    asyncio.run(run())


def test_a_file_of_dask_that_is_no_yaml(tmp_path: Path) -> None:
    file = tmp_path / "farm.yaml"
    file.write_text("distributed:\n  comm: [\n")
    argv, env = [str(BUILDFARM), "worker", "tcp://127.0.0.1:8786"], os.environ | {"DASK_CONFIG": str(tmp_path)}
    ran = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert ran.returncode == Exit.USAGE
    said = " ".join(ran.stderr.split())
    for words in ("error[file-invalid]: Dask cannot read its configuration: ", str(file), "line 3"):
        assert words in said


PAGE = DOCS / "how-to" / "several-machines.md"
FILES = DOCS / "how-to" / "several-machines"

#: What dask-jobqueue 0.9.0 makes of jobqueue.yaml (`SLURMCluster().job_script()`), without the path of Python.
JOB = (
    "-m builder worker tls://192.0.2.2:8786 --name dummy-name --nthreads 16 --memory-limit 64.00GiB"
    " --death-timeout 3600 --store /SCRATCH/buildfarm/$SLURM_JOB_ID"
)


def block(start: str) -> str:
    """The block of the page that begins with this text."""
    blocks = re.findall(r"^ *```[a-z]*\n(.*?)^ *```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    (found,) = [text for text in blocks if text.strip().startswith(start)]
    return re.sub(r"^    ", "", found, flags=re.MULTILINE)


def document(name: str) -> Any:
    return yaml.safe_load((FILES / name).read_text(encoding="utf-8"))


def worker_options(argv: list[str]) -> dict[str, Any]:
    """The options of `buildfarm worker` in a command line; the command line's errors are errors of the test."""
    assert argv[0] == "worker"
    options: dict[str, Any] = load_command("worker").make_context("worker", argv[1:]).params
    return options


def test_compose_file_starts_a_scheduler_and_workers_with_stores_of_their_own() -> None:
    services = document("compose.yaml")["services"]
    scheduler = services.pop("scheduler")
    assert scheduler["command"][:4] == ["dask", "scheduler", "--protocol", "tls"]
    assert all(port.startswith("127.0.0.1:") for port in scheduler["ports"])
    stores = [mount for worker in services.values() for mount in worker["volumes"] if mount.endswith(":/store")]
    assert len(set(stores)) == len(services) == 2
    for name, worker in services.items():
        assert worker["command"][0] == "buildfarm"
        options = worker_options(worker["command"][1:])
        assert (options["scheduler"], options["name"]) == ("tls://scheduler:8786", name)
        assert not options["plain_tcp"]


def test_kubernetes_worker_is_a_worker_of_buildfarm() -> None:
    cluster = document("kubernetes.yaml")
    spec, name = cluster["spec"], cluster["metadata"]["name"]
    (container,) = spec["worker"]["spec"]["containers"]
    options = worker_options(container["args"][1:])
    assert options["scheduler"] == f"tls://{name}-scheduler:8786"  # the operator names the service so
    assert spec["scheduler"]["service"]["selector"]["dask.org/cluster-name"] == name
    for part in ("scheduler", "worker"):
        pod = spec[part]["spec"]
        mounted = {mount["name"] for mount in pod["containers"][0]["volumeMounts"]}
        assert mounted == {volume["name"] for volume in pod["volumes"]}
        settings = {each["name"]: each["value"] for each in pod["containers"][0]["env"]}
        assert settings[f"DASK_DISTRIBUTED__COMM__TLS__{part.upper()}__CERT"] == f"/tls/{part}.pem"


def test_worker_accepts_the_command_line_of_dask_jobqueue() -> None:
    options = worker_options(JOB.split()[2:])
    assert options["wait"] == 3600
    slurm = document("jobqueue.yaml")["jobqueue"]["slurm"]
    assert f"-m {slurm['worker-command']} " in JOB
    assert JOB.endswith(" ".join(slurm["worker-extra-args"]))
    assert f"--death-timeout {slurm['death-timeout']}" in JOB


def test_files_with_settings_name_settings_that_dask_knows() -> None:
    """A name that Dask does not know would have no effect, and no error."""

    def names(data: Any, prefix: str = "") -> set[str]:
        if not isinstance(data, dict):
            return {prefix.rstrip(".")}
        return {name for key, value in data.items() for name in names(value, f"{prefix}{key}.")}

    known = names(dask.config.collect(paths=[], env={}) | {"distributed": dask.config.get("distributed")})
    files = [document("jobqueue.yaml"), yaml.safe_load(block("distributed:"))]
    used = set().union(*(names({"distributed": data["distributed"]}) for data in files))
    text = "".join(path.read_text(encoding="utf-8") for path in (PAGE, *FILES.glob("*")))
    variables = set(re.findall(r"DASK_DISTRIBUTED__[A-Z_]+[A-Z]", text))
    used |= {name[5:].lower().replace("__", ".").replace("_", "-") for name in variables}
    assert len(used) > 8
    assert json.dumps(sorted(used - known)) == "[]"
