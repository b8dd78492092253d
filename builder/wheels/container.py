"""What a build's container gets: cibuildwheel's configuration, mounts, environment, scripts."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from builder.images.network import ca_bundle, ca_variables, index_variables
from builder.images.render import ImageSpec, templates
from builder.store import digest_of
from builder.wheels.build import Job
from builder.wheels.local import build_variables
from builder.wheels.pythons import find_uv

#: Containers of a build carry this label with the job's mark, so that what a killed farm left is found, and what
#: a farm with another store is making at the same time is not.
LABEL = "buildfarm.build"

#: The volume that holds uv's cache where the host's own cannot be shared.
VOLUME = "buildfarm-uv"

_SCRIPTS = ("prepare.sh", "graft.sh")

#: Paths inside the container.
_JOB, _CACHE, _CA, _SHIM = "/buildfarm/job", "/buildfarm/cache", "/buildfarm/ca.pem", "/buildfarm/shim"

_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def machine(job: Job) -> str:
    """The processor, as platform tags spell it: `x86_64`."""
    return job.build.platform.removeprefix("linux_")


def identifier(job: Job) -> str:
    """cibuildwheel's name for the one build of a run: `cp311-manylinux_x86_64`."""
    return f"{job.toolchain.python.tag}-manylinux_{machine(job)}"


def environment_name(job: Job) -> str:
    """The folder of a job's environment in uv's cache, which all farms of this machine share."""
    return "buildfarm-" + re.sub(r"[^\w.-]", "-", job.mark)


def scripts_digest() -> str:
    """A name for the bytes of the scripts that run in the container."""
    return digest_of([(templates() / name).read_text() for name in _SCRIPTS])[:12]


def write_inputs(job: Job, *, image: str, torch_index: Sequence[str]) -> tuple[Path, Path]:
    """Lay out what the run reads; returns cibuildwheel's configuration and the folder mounted as the job's.

    `torch_index` are the URLs of indexes that go before the default one.
    """
    mounted = job.work / "container"
    mounted.mkdir(exist_ok=True)
    for name in _SCRIPTS:
        shutil.copyfile(templates() / name, mounted / name)
    packages = job.toolchain.part("packages").split(" ")
    (mounted / "requirements.txt").write_text("\n".join(packages) + "\n")
    settings = job.work / "cibuildwheel.toml"
    settings.write_text(configuration(job, image=image, mounted=mounted, torch_index=torch_index))
    return settings, mounted


def configuration(job: Job, *, image: str, mounted: Path, torch_index: Sequence[str]) -> str:
    """cibuildwheel's configuration for a job, TOML.

    A file rather than CIBW_ variables: nothing needs quoting twice, and it can be read afterwards. The
    source's own [tool.cibuildwheel] is thereby left aside: it speaks of its authors' CI, not of this build.
    """
    create = [
        f"--label={LABEL}={job.mark}",
        _mount("bind", mounted, _JOB),
        _cache_mount(),
        _mount("bind", ca_bundle(), _CA, readonly=True),
    ]
    if job.recipe.assume_cuda:
        create.append(_mount("bind", Path(__file__).parent / "assume_cuda", _SHIM, readonly=True))
    variables = container_variables(job, torch_index)
    create += [f"--env={name}={value}" for name, value in sorted(variables.items())]
    # By name alone: docker takes the values, which may hold passwords, from its own environment.
    create += [f"--env={name}" for name in index_variables() if name not in variables]
    lines = {
        "container-engine": {"name": "docker", "create-args": create, "disable-host-mount": True},
        f"manylinux-{machine(job)}-image": image,
        # The same front end as the local executor's.
        "build-frontend": {"name": "uv", "args": ["--no-build-isolation", "--no-config"]},
        "before-build": f"sh {_JOB}/prepare.sh",
        "repair-wheel-command": f"sh {_JOB}/graft.sh {{wheel}} {{dest_dir}}",
        # The farm audits the finished file itself, after it has set its version and tags.
        "audit-command": "",
        "dependency-versions": "latest",
        "test-command": "",
    }
    return "[tool.cibuildwheel]\n" + "".join(f"{key} = {_toml(value)}\n" for key, value in lines.items())


def container_variables(job: Job, torch_index: Sequence[str]) -> dict[str, str]:
    """The build's environment in the container, as plain values; the recipe's own words come last."""
    python = job.toolchain.python
    prefix = ImageSpec.prefix(python)
    site = f"{prefix}/lib/python{python.major}.{python.minor}/site-packages"
    home = f"{site}/nvidia/cu{job.build.cuda.major}"
    variables = {
        **build_variables(job),
        **ca_variables(_CA),
        "BUILDFARM_ENVIRONMENT": f"{_CACHE}/{environment_name(job)}",
        "BUILDFARM_JOB_DIR": _JOB,
        "BUILDFARM_PREFIX": prefix,
        "BUILDFARM_SITE": site,
        "BUILDFARM_TORCH_CUDA": str(job.build.cuda),
        "CC": "gcc",
        "CXX": "g++",
        "CUDA_HOME": home,
        "PATH": f"{home}/bin:{_SYSTEM_PATH}",
        "UV_CACHE_DIR": _CACHE,
        "UV_LINK_MODE": "hardlink",
        "UV_NO_PROGRESS": "1",
        "UV_PYTHON_DOWNLOADS": "never",
    }
    if job.recipe.assume_cuda:
        variables["PYTHONPATH"] = _SHIM
    if torch_index:
        variables["UV_INDEX"] = " ".join(torch_index)
    return variables | job.recipe.env


def forget(job: Job) -> None:
    """Delete the environment a failed run left in the host's uv cache (a finished one deletes its own)."""
    if cache := _host_cache():
        shutil.rmtree(cache / environment_name(job), ignore_errors=True)


def _host_cache() -> Path | None:
    """This machine's uv cache, or None where a container must not share it.

    The container's root would leave files there that are not the user's: such containers share a volume.
    """
    if os.getuid() != 0:
        return None
    answer = subprocess.run([find_uv(), "cache", "dir"], capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        return None
    cache = Path(answer.stdout.strip())
    cache.mkdir(parents=True, exist_ok=True)
    return cache


def _cache_mount() -> str:
    cache = _host_cache()
    return _mount("bind", cache, _CACHE) if cache else _mount("volume", VOLUME, _CACHE)


def _mount(kind: str, source: Path | str, target: str, *, readonly: bool = False) -> str:
    """A --mount argument; its value is one CSV record, so that a path may hold a comma."""
    record = io.StringIO()
    fields = [f"type={kind}", f"src={source}", f"dst={target}", *(["readonly"] if readonly else [])]
    csv.writer(record, lineterminator="").writerow(fields)
    return f"--mount={record.getvalue()}"


def _toml(value: object) -> str:
    """Strings, booleans, lists and tables as TOML, whose strings take JSON's escapes."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(entry)}" for key, entry in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
