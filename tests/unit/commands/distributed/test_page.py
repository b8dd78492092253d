"""The page about several machines: its certificates, and its files for compose, Slurm and Kubernetes."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import dask
import pytest
import typer
import yaml
from distributed.comm.core import connect, listen
from distributed.security import Security

from builder.cli.app import app
from docs.generate import DOCS
from tests.conftest import PATIENCE, lacking

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
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert argv[0] == "worker"
    options: dict[str, Any] = commands["worker"].make_context("worker", argv[1:]).params
    return options


def certificates(folder: Path) -> None:
    """Run the page's commands of openssl."""
    if not shutil.which("openssl"):
        lacking("openssl is not there")
    subprocess.run(["bash", "-e", "-c", block("openssl req -x509")], cwd=folder, check=True, capture_output=True)


def security_of(folder: Path, machine: str) -> Security:
    """Dask's settings from the file that the page shows, with the files of this machine."""
    text = block("distributed:").replace("/etc/buildfarm/machine", str(folder / machine))
    settings = yaml.safe_load(text.replace("/etc/buildfarm", str(folder)))
    with dask.config.set(dask.config.merge(dask.config.config, settings)):
        return Security()  # type: ignore[no-untyped-call]


async def said(server: Security, client: Security) -> object:
    """What a client's message becomes that goes to a scheduler and back."""

    async def answer(comm: Any) -> None:
        await comm.write(("heard", await comm.read()))

    async with listen("tls://127.0.0.1:0", answer, **server.get_listen_args("scheduler")) as listener:  # type: ignore[no-untyped-call]
        comm = await connect(listener.contact_address, timeout=PATIENCE, **client.get_connection_args("client"))  # type: ignore[no-untyped-call]
        await comm.write("hello")
        heard = await asyncio.wait_for(comm.read(), PATIENCE)
        await comm.close()
        return heard


def test_the_certificates_of_the_page_connect_machines_and_no_others(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for folder in (ours, theirs):
        folder.mkdir()
        certificates(folder)
    scheduler = security_of(ours, "machine1")
    assert scheduler.require_encryption
    assert asyncio.run(said(scheduler, security_of(ours, "laptop"))) == ("heard", "hello")
    with pytest.raises(OSError, match=r"(?i)certificate|handshake|closed|alert"):
        asyncio.run(said(scheduler, security_of(theirs, "laptop")))


def test_compose_file_fits_its_schema() -> None:
    program = Path(sys.executable).parent / "check-jsonschema"
    if not program.is_file():
        lacking("check-jsonschema is not there")
    argv = [str(program), "--builtin-schema", "vendor.compose-spec", str(FILES / "compose.yaml")]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


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
