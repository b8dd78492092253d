"""The page about several machines: its files for compose, Slurm and Kubernetes."""

from __future__ import annotations

import json
import re
from typing import Any

import dask
import distributed  # noqa: F401 - adds its settings to those of Dask
import yaml

from builder.cli.app import load_command
from docs.generate import DOCS

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
