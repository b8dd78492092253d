"""What a build's container gets: cibuildwheel's configuration, mounts, environment, scripts."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from builder.images.container import LABEL, ROOM, USER
from builder.images.files import templates
from builder.images.making import Insides
from builder.images.network import FIRST_INDEX, ca_bundle, ca_variables, index_variables
from builder.images.specs import python_prefix
from builder.matrix.config import PathSource
from builder.store import digest_of
from builder.wheels.build import Job
from builder.wheels.local import build_variables
from builder.wheels.object_cache import cache_variables, compiler_variables, not_reusing
from builder.wheels.place import joined
from builder.wheels.settings import constraints, merged, overruled
from builder.wheels.upstream import Upstream

#: Volumes of the engine that hold uv's cache and the compilers' results. The host's own caches are not shared: what
#: a container's user writes there would not be the person's, and what is not theirs it cannot link.
PACKAGES_VOLUME, OBJECTS_VOLUME = "buildfarm-uv", "buildfarm-sccache"

_SCRIPTS = (
    "prepare.sh",
    "hold.py",
    "packages.sh",
    "bytecode.sh",
    "objects.sh",
    "launch.sh",
    "graft.sh",
    "before_test.sh",
)

#: Where cibuildwheel unpacks the source (4.x).
SOURCE = "/project"

#: Paths inside the container; the caches' are made by the image, so that the build's user owns them.
_JOB, _CA, _SHIM = "/buildfarm/job", "/buildfarm/ca.pem", "/buildfarm/shim"
_PACKAGES, _CACHE = "/buildfarm/uv", "/buildfarm/sccache"

#: The compilers behind the cache, laid out by objects.sh.
_OBJECTS = "/buildfarm/objects"


@dataclass(frozen=True)
class Place:
    """Where a job is built.

    Attributes:
        image: the image's tag.
        insides: what it holds.
        has_toolkit: whether nvcc is the image's own and not the package index's.

    """

    image: str
    insides: Insides
    has_toolkit: bool


def machine(job: Job) -> str:
    """The processor, as platform tags spell it: `x86_64`."""
    return job.build.platform.removeprefix("linux_")


def identifier(job: Job) -> str:
    """cibuildwheel's name for the one build of a run: `cp311-manylinux_x86_64`."""
    return f"{job.toolchain.python.tag}-manylinux_{machine(job)}"


def environment_name(job: Job) -> str:
    """The folder of a job's environment in uv's cache, which all farms of this engine share."""
    return "buildfarm-" + re.sub(r"[^\w.-]", "-", job.mark)


def left_in_volumes(job: Job) -> tuple[str, dict[str, str]]:
    """A shell script that deletes what an unfinished build left in the engine's volumes, and those volumes."""
    folder = f"{_PACKAGES}/{environment_name(job)}"
    return f"rm -rf {folder} {folder}-test {folder}.lock", {PACKAGES_VOLUME: _PACKAGES}


def scripts_digest() -> str:
    """A name for the bytes of the scripts that run in the container."""
    return digest_of([(templates() / name).read_text() for name in _SCRIPTS])[:12]


def write_inputs(job: Job, place: Place, upstream: Upstream, *, torch_index: Sequence[str]) -> tuple[Path, Path]:
    """Lay out what the run reads; returns cibuildwheel's configuration and the folder mounted as the job's.

    `upstream` is what the source asks of cibuildwheel; `torch_index` are the URLs of indexes that go before the
    default one.
    """
    mounted = job.work / "container"
    mounted.mkdir(exist_ok=True)
    mounted.chmod(0o777)  # the build's user is another than the farm's, and leaves its answers there
    for name in _SCRIPTS:
        shutil.copyfile(templates() / name, mounted / name)
    packages = job.toolchain.part("packages").split(" ")
    (mounted / "requirements.txt").write_text("\n".join(packages) + "\n")
    (mounted / "constraints.txt").write_text(constraints(packages))
    if upstream.tests and isinstance(job.recipe.source, PathSource):
        tests = job.recipe.source.path / "tests"  # no source of the build: see source.py
        if tests.is_dir():
            shutil.copytree(tests, mounted / "tests", ignore=shutil.ignore_patterns("__pycache__", ".pytest_cache"))
    settings = job.work / "cibuildwheel.toml"
    settings.write_text(configuration(job, place, upstream, mounted=mounted, torch_index=torch_index))
    return settings, mounted


def objects_told(job: Job) -> Path:
    """Where the object cache of a job's container leaves its log."""
    return job.work / "container" / "objects"


def left_aside(job: Job, place: Place, upstream: Upstream) -> list[str]:
    """What of the source's own settings does not hold here, a sentence each, for the person."""
    farm, recipe = container_variables(job, place, ()), job.recipe.env
    if names := overruled(upstream, farm=farm, recipe=recipe):
        told = f"the source's own {', '.join(names)} in [tool.cibuildwheel] left aside: the plan or the recipe says it"
        return [*upstream.words, told]
    return list(upstream.words)


def configuration(job: Job, place: Place, upstream: Upstream, *, mounted: Path, torch_index: Sequence[str]) -> str:
    """cibuildwheel's configuration for a job, TOML: the farm's settings joined with the source's own.

    A file rather than CIBW_ variables: nothing needs quoting twice, and it can be read afterwards. It stands in the
    place of the source's own [tool.cibuildwheel], which speaks of its authors' CI as well as of the build.
    """
    create = [
        f"--label={LABEL}={job.mark}",
        # A compile needs no GPU, and where NVIDIA's runtime is the default an old driver would refuse the image.
        "--env=NVIDIA_VISIBLE_DEVICES=void",
        _mount("bind", mounted, _JOB),
        _mount("volume", PACKAGES_VOLUME, _PACKAGES),
        # Objects that root has written, the build's user could not replace.
        _mount("volume", f"{OBJECTS_VOLUME}{'-root' * upstream.needs_root}", _CACHE),
        _mount("bind", ca_bundle(), _CA, readonly=True),
        # Compilers, uv and Python go through it for each file: the container's storage need not be asked for it.
        f"--tmpfs={ROOM}:exec,mode=755,uid={USER},gid={USER}",
    ]
    if job.recipe.assume_cuda:
        create.append(_mount("bind", Path(__file__).parent / "assume_cuda", _SHIM, readonly=True))
    variables = container_variables(job, place, torch_index)
    if not upstream.before_all and not upstream.before_build:
        # With commands of the source's own, headers may stand in the image that neither image nor lock tell of.
        variables |= {"BUILDFARM_PLACE": digest_of([place.image, job.toolchain.parts])[:16], "BUILDFARM_SOURCE": SOURCE}
    if upstream.needs_root:
        create.append("--user=0:0")
        variables["UV_CACHE_DIR"] = "/root/.cache/uv"  # the shared cache is not root's; see packages.sh
    if upstream.tests:
        create.append("--env=BUILDFARM_KEEP_ENVIRONMENT=1")  # the tests' environment is made by its Python
    create += [f"--env={name}={value}" for name, value in sorted(variables.items()) if name != FIRST_INDEX]
    # By name alone: docker takes the values, which may hold passwords, from its own environment.
    named = {*index_variables(), *({FIRST_INDEX} & variables.keys())}
    create += [f"--env={name}" for name in sorted(named) if name == FIRST_INDEX or name not in variables]
    lines = {
        "container-engine": {"name": "docker", "create-args": create, "disable-host-mount": True},
        f"manylinux-{machine(job)}-image": place.image,
        "before-build": f"sh {_JOB}/prepare.sh",
        "repair-wheel-command": f"sh {_JOB}/graft.sh {{wheel}} {{dest_dir}}",
        # The farm audits the finished file itself, after it has set its version and tags.
        "audit-command": "",
        "dependency-versions": "latest",
        "test-command": "",
    }
    # The same front end as the local executor's.
    frontend_args = ["--no-build-isolation", "--no-config"]
    settings = merged(lines, upstream, frontend_args=frontend_args, farm=variables, recipe=job.recipe.env, job=_JOB)
    return "[tool.cibuildwheel]\n" + "".join(f"{key} = {_toml(value)}\n" for key, value in settings.items())


def container_variables(job: Job, place: Place, torch_index: Sequence[str]) -> dict[str, str]:
    """The build's environment in the container, as plain values; the recipe's own words come last."""
    python = job.toolchain.python
    prefix = python_prefix(python)
    suffix = "t" if python.free_threaded else ""
    site = f"{prefix}/lib/python{python.major}.{python.minor}{suffix}/site-packages"
    toolkit = "/usr/local/cuda" if place.has_toolkit else f"{site}/nvidia/cu{job.build.cuda.major}"
    variables = {
        **build_variables(job),
        **ca_variables(_CA),
        **cache_variables(_OBJECTS, f"{_JOB}/objects", f"{_CACHE}/objects", f"{_OBJECTS}/server.sock"),
        **compiler_variables(_OBJECTS, toolkit=toolkit, site=site, cc="gcc", cxx="g++", path=place.insides.path),
        **not_reusing(job.source, reuse=job.reuse),
        "BUILDFARM_ENVIRONMENT": f"{_PACKAGES}/{environment_name(job)}",
        "BUILDFARM_JOB_DIR": _JOB,
        "BUILDFARM_PACKAGES": _PACKAGES,
        "BUILDFARM_PREFIX": prefix,
        "BUILDFARM_TORCH_CUDA": str(job.build.cuda),
        "UV_CACHE_DIR": _PACKAGES,
        "UV_LINK_MODE": "hardlink",
        "UV_NO_PROGRESS": "1",
        "UV_PYTHON_DOWNLOADS": "never",
    }
    if not place.has_toolkit:
        variables["BUILDFARM_LINK_TOOLKIT"] = "1"
    if job.recipe.assume_cuda:
        variables["PYTHONPATH"] = _SHIM
    if torch_index:
        variables[FIRST_INDEX] = " ".join(torch_index)
    return joined(variables, job.recipe.env)


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
