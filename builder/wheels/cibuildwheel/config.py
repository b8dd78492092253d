"""Inputs of a build's container: cibuildwheel's configuration, mounts, environment variables and scripts."""

import csv
import io
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from builder.formats import digest_of
from builder.images.container import CONTAINER_DIR, OWNER_LABEL, PROCESSES, USER, ContainerSpec
from builder.images.network import CA_BUNDLE, FIRST_INDEX, ca_variables, copy_ca_bundle, index_variables, saved_mount
from builder.images.specs import python_prefix
from builder.resources import measure_resources
from builder.wheelfile.compatibility import DRIVER_LIBRARIES
from builder.wheels.build_scripts import FOLDERS, copy_scripts, script_command
from builder.wheels.build_scripts.job_file import BuildPaths, write_job
from builder.wheels.failures import asking, identity_question
from builder.wheels.job import JOB_FILE, CompileJob, config_setting_options
from builder.wheels.sccache.configure import as_set, cache_variables, with_reuse
from builder.wheels.sccache.launchers.server import CacheSettings
from builder.wheels.toolchain.environments import wheels_only
from builder.wheels.variables import build_variables, merge_variables

#: The first program of a container, in the directory that is mounted into it.
#:
#: cibuildwheel copies files such as `/constraints.txt` and `/cibuildwheel-ca-bundle.pem` (since 4.3.4) as the user of
#: the container. That user cannot create files in `/`, and an image cannot change that: an engine makes the root
#: directory of each container anew, for root and with mode 755 (seen with Docker Engine 20.10).
#:
#: So this program waits until buildfarm has made `/` writable. buildfarm does that as root, through the engine, before
#: anything else runs in the container. The sticky bit keeps `/usr` and the other directories of root. After 300 s the
#: container goes on: cibuildwheel then reports which file it could not write.
ENTRY_POINT = "wait-for-root-directory"
_SCRIPT = """\
#!/bin/sh
tries=0
while [ ! -w / ] && [ "$tries" -lt 3000 ]; do
    sleep 0.1
    tries=$((tries + 1))
done
exec "$@"
"""
#: Engine volumes with uv's cache and the compiler cache. Containers do not use the host's caches: files that the
#: container's user writes there would not belong to the host's user, and it cannot hard-link files of other users.
#: Builds cannot write into the volume of packages. Each extension has a volume of objects, with its name after a dot.
PACKAGES_VOLUME, OBJECTS_VOLUME = "buildfarm-packages", "buildfarm-sccache"

#: Directory to which cibuildwheel 4.x copies its working directory, `CompileJob.tree`.
SOURCE = "/project"

#: Paths in the container. The image creates those of the caches, so that they belong to the build's user.
_JOB, _CA, _SHIM = "/buildfarm/job", "/buildfarm/ca.pem", "/buildfarm/shim"
_PACKAGES, _CACHE = "/buildfarm/uv", "/buildfarm/sccache"

#: Launchers of compilers and the cache server's socket; `builder.wheels.sccache.launchers` makes the folder.
_OBJECTS = "/buildfarm/objects"

#: The Python of rendered images for tools.
_TOOLS_PYTHON = "/opt/buildfarm/bin/python"


@dataclass(frozen=True)
class ContainerInputs:
    """What the containers of a job get."""

    image: str  # its tag
    variables: Mapping[str, str]  # environment variables of the build
    paths: BuildPaths  # what the build scripts read from the job's file
    cache: CacheSettings


def container_inputs(
    job: CompileJob, image: str, path: str, torch_index: Sequence[str], *, has_toolkit: bool, compiler_cache: bool
) -> ContainerInputs:
    """Find what the containers of a job get.

    `image` is the tag of the image, `path` the PATH in it, and `has_toolkit` whether nvcc is in it; otherwise nvcc
    comes from the package index. `torch_index` are URLs of indexes that take precedence over others.
    """
    python = job.toolchain.python
    prefix = python_prefix(python)
    site = f"{prefix}/lib/python{python}/site-packages"
    toolkit = "/usr/local/cuda" if has_toolkit else f"{site}/nvidia/cu{job.build.cuda.major}"
    settings = CacheSettings(
        objects=Path(_OBJECTS),
        statistics_dir=Path(_JOB, "statistics"),
        toolkit=Path(toolkit),
        site=Path(site),
        cc="gcc",
        cxx="g++",
        cache_dir=Path(_CACHE, "objects"),
        socket=Path(_OBJECTS, "server.sock"),
    )
    settings = with_reuse(settings, job.tree, enabled=compiler_cache, reuse=job.reuse)
    variables = {
        **build_variables(job),
        **ca_variables(_CA),
        **cache_variables(settings, path),
        "BUILDFARM_HEADERS_DIGEST": digest_of([image, list(job.toolchain.parts().items())])[:16],
        "BUILDFARM_PREFIX": prefix,
        "BUILDFARM_SOURCE": SOURCE,
        "GIT_CEILING_DIRECTORIES": str(PurePosixPath(SOURCE).parent),
        "UV_CACHE_DIR": f"{CONTAINER_DIR}/own-uv",  # a build cannot write into the volume of packages
        "UV_LINK_MODE": "hardlink",
        "UV_NO_PROGRESS": "1",
        "UV_PYTHON_DOWNLOADS": "never",
    }
    if job.recipe.assume_cuda:
        variables["PYTHONPATH"] = _SHIM
    if torch_index:
        variables[FIRST_INDEX] = " ".join(torch_index)
    variables = merge_variables(variables, job.recipe.env)
    # The environment of a build is named after everything in it.
    index = {**index_variables(), **variables}
    parts = [image, prefix, toolkit, *job.toolchain.packages]
    name = digest_of([*parts, index.get(FIRST_INDEX, ""), index.get("UV_DEFAULT_INDEX", "")])[:32]
    paths = BuildPaths(
        job_dir=Path(_JOB),
        packages=Path(_PACKAGES),
        environment=Path(_PACKAGES, f"env-{name}"),
        prefix=Path(prefix),
        site=Path(site),
        toolkit=Path(toolkit),
        torch_cuda=str(job.build.cuda),
        links_toolkit=not has_toolkit,
        drivers=sorted(DRIVER_LIBRARIES),
    )
    return ContainerInputs(image, variables, paths, as_set(settings, variables))


def install_spec(job: CompileJob, inputs: ContainerInputs) -> tuple[ContainerSpec, list[str]]:
    """The container in which root installs the packages of a build, and its program; no code of a source runs there."""
    spec = ContainerSpec(
        image=inputs.image,
        labels={OWNER_LABEL: job.owner},
        environment={**index_variables(), **inputs.variables, "NVIDIA_VISIBLE_DEVICES": "void"},
        bind_mounts={job.shared: _JOB, job.work / CA_BUNDLE: _CA, **saved_mount()},
        volumes={PACKAGES_VOLUME: _PACKAGES},
        memory=measure_resources().memory,
        user=0,
        capabilities=("DAC_OVERRIDE",),  # the image's folders belong to the build's user
    )
    return spec, _script("install-packages")


def write_inputs(job: CompileJob, inputs: ContainerInputs) -> Path:
    """Write the inputs of a run; returns the path of cibuildwheel's configuration."""
    mounted = job.shared
    mounted.mkdir(exist_ok=True)
    mounted.chmod(0o777)  # the container's user writes results there
    copy_scripts(mounted)
    entry_point = mounted / ENTRY_POINT
    entry_point.write_text(_SCRIPT)
    entry_point.chmod(0o755)
    copy_ca_bundle(job.work)
    write_job(job.file, inputs.cache, inputs.paths)
    packages = job.toolchain.packages
    options = [] if job.reuse else wheels_only(packages, job.recipe.build_requires)
    (mounted / "requirements.txt").write_text("\n".join([*options, *packages]) + "\n")
    settings = job.work / "cibuildwheel.toml"
    settings.write_text(configuration(job, inputs))
    return settings


def configuration(job: CompileJob, inputs: ContainerInputs) -> str:
    """cibuildwheel's configuration for a job as TOML.

    A file needs no double quoting, unlike CIBW_ variables, and can be read after the build. cibuildwheel reads it in
    place of [tool.cibuildwheel] in the source, which has settings for the CI of the source's authors.
    """
    before, question = shlex.join(_script("before-build")), identity_question(job)
    if question:  # name and version, if the source does not state them
        python = f"{python_prefix(job.toolchain.python)}/bin/python"
        project = PurePosixPath(SOURCE, job.source.relative_to(job.tree))
        before += f" || exit; {asking(question, python, f'{_JOB}/builder/{FOLDERS[0]}/identity.py', project)}"
    settings = {
        "container-engine": {
            "name": "docker",
            "create-args": _create_arguments(job, inputs.variables),
            "disable-host-mount": True,
        },
        f"manylinux-{job.build.platform.machine}-image": inputs.image,
        "before-build": before,
        # The same front end as in the local executor.
        "build-frontend": {
            "name": "uv",
            "args": ["--no-build-isolation", "--no-config", *config_setting_options(job.recipe)],
        },
        "repair-wheel-command": f"{shlex.join(_script('after-build'))} {{wheel}} {{dest_dir}}",
        # buildfarm audits the finished wheel itself, after setting its version and tags.
        "audit-command": "",
        "dependency-versions": "latest",
        "test-command": "",
    }
    return "[tool.cibuildwheel]\n" + "".join(f"{key} = {_toml(value)}\n" for key, value in settings.items())


def _create_arguments(job: CompileJob, variables: Mapping[str, str]) -> list[str]:
    """Arguments of `docker create`: label, limits, mounts and environment variables."""
    create = [
        f"--label={OWNER_LABEL}={job.owner}",
        f"--entrypoint={_JOB}/{ENTRY_POINT}",
        # A compile needs no GPU. NVIDIA's container runtime would refuse the image if the driver is too old for it.
        "--env=NVIDIA_VISIBLE_DEVICES=void",
        "--cap-drop=ALL",
        "--security-opt=no-new-privileges",
        f"--memory={measure_resources().memory}",
        f"--pids-limit={PROCESSES}",
        _mount("bind", job.shared, _JOB),
        _mount("volume", PACKAGES_VOLUME, _PACKAGES, readonly=True),
        _mount("volume", f"{OBJECTS_VOLUME}.{job.recipe.name}", _CACHE),
        _mount("bind", job.work / CA_BUNDLE, _CA, readonly=True),
        # In memory: compilers, uv and Python look up every file below this directory, and storage drivers are slow.
        f"--tmpfs={CONTAINER_DIR}:exec,mode=755,uid={USER},gid={USER}",
    ]
    if job.recipe.assume_cuda:
        create.append(_mount("bind", Path(__file__).parents[1] / "assume_cuda", _SHIM, readonly=True))
    create += [f"--env={name}={value}" for name, value in sorted(variables.items()) if name != FIRST_INDEX]
    # Names only: docker reads the values, which may contain passwords, from its own environment.
    named = {*index_variables(), *({FIRST_INDEX} & variables.keys())}
    return create + [f"--env={name}" for name in sorted(named) if name == FIRST_INDEX or name not in variables]


def _script(command: str) -> list[str]:
    """The command line of a script in the container."""
    return script_command(_TOOLS_PYTHON, PurePosixPath(_JOB), PurePosixPath(_JOB, JOB_FILE), command)


def _mount(kind: str, source: Path | str, target: str, *, readonly: bool = False) -> str:
    """A --mount argument. Its value is a CSV record, so a path may contain a comma."""
    record = io.StringIO()
    fields = [f"type={kind}", f"src={source}", f"dst={target}", *(["readonly"] if readonly else [])]
    csv.writer(record, lineterminator="").writerow(fields)
    return f"--mount={record.getvalue()}"


def _toml(value: object) -> str:
    """Strings, booleans, lists and tables as TOML; its strings support the escapes of JSON."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(entry)}" for key, entry in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
