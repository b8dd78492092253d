"""Inputs of a build's container: cibuildwheel's configuration, mounts, environment variables and scripts."""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from builder.hashing import digest_of
from builder.images.container import CONTAINER_DIR, OWNER_LABEL, PROCESSES, USER, ContainerSpec
from builder.images.image_build import ImageContents
from builder.images.network import FIRST_INDEX, ca_bundle, ca_variables, index_variables
from builder.images.specs import python_prefix
from builder.matrix.config import PathSource
from builder.resources import measure_resources
from builder.wheelfile.driver import DRIVER_LIBRARIES
from builder.wheels.build_scripts.finish import DRIVER_LIBRARIES as DRIVER_LIBRARIES_FILE
from builder.wheels.cibuildwheel.merge import constraints, merge_settings, overridden_variables
from builder.wheels.cibuildwheel.root_directory import ENTRY_POINT, write_entry_point
from builder.wheels.cibuildwheel.upstream import Upstream
from builder.wheels.job import CompileJob, config_setting_options
from builder.wheels.sccache.configure import cache_variables, compiler_variables, reuse_variables
from builder.wheels.scripts import copy_scripts, script_command
from builder.wheels.toolchain.recorded_packages import wheels_only
from builder.wheels.variables import build_variables, merge_variables
from builder.wheels.wheel_checks import identity_question

#: Engine volumes with uv's cache and the compiler cache. Containers do not use the host's caches: files that the
#: container's user writes there would not belong to the host's user, and it cannot hard-link files of other users.
#: Where a build can write, each extension has a volume of its own, whose name goes on after a dot.
PACKAGES_VOLUME, OBJECTS_VOLUME = "buildfarm-packages", "buildfarm-sccache"

#: The capabilities of a build as root: package managers give files to users and run as users, as the scripts do.
_ROOT_CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETFCAP", "SETGID", "SETUID")

#: Directory that cibuildwheel 4.x copies the source to.
SOURCE = "/project"

#: Paths in the container. The image creates those of the caches, so that they belong to the build's user.
_JOB, _CA, _SHIM = "/buildfarm/job", "/buildfarm/ca.pem", "/buildfarm/shim"
_PACKAGES, _CACHE = "/buildfarm/uv", "/buildfarm/sccache"

#: Launchers of compilers and the cache server's socket; `builder.wheels.sccache.launchers` makes the folder.
_OBJECTS = "/buildfarm/objects"

#: The Python of rendered images for tools.
_TOOLS_PYTHON = "/opt/buildfarm/bin/python"


@dataclass(frozen=True)
class BuildContainer:
    """The image of a job's container.

    Attributes:
        image: tag of the image.
        contents: versions of the tools in the image.
        has_toolkit: whether nvcc is in the image; otherwise it comes from the package index.
        compiler_cache: whether compilers run through sccache.

    """

    image: str
    contents: ImageContents
    has_toolkit: bool
    compiler_cache: bool = True


def machine(job: CompileJob) -> str:
    """The processor architecture, as in platform tags: `x86_64`."""
    return job.build.platform.removeprefix("linux_")


def identifier(job: CompileJob) -> str:
    """cibuildwheel's build identifier: `cp311-manylinux_x86_64`."""
    return f"{job.toolchain.python.tag}-manylinux_{machine(job)}"


def environment_name(job: CompileJob) -> str:
    """Directory name of a job's environment in the volume of uv's cache, which all runs on this engine share."""
    return "buildfarm-" + re.sub(r"[^\w.-]", "-", job.owner)


def volume_cleanup(job: CompileJob) -> tuple[str, dict[str, str]]:
    """A shell script that deletes an unfinished build's own environment, and the volumes that it needs."""
    folder = f"{_PACKAGES}/{environment_name(job)}"
    return f"rm -rf {folder} {folder}-test {folder}.lock", {_volume(PACKAGES_VOLUME, job): _PACKAGES}


def shared_environment(job: CompileJob, container: BuildContainer, variables: Mapping[str, str]) -> dict[str, str]:
    """The variables of a build whose environment `install_spec` makes: it is named after everything in it."""
    index = {**index_variables(), **variables}
    parts = [container.image, variables["BUILDFARM_PREFIX"], variables["BUILDFARM_TOOLKIT"], *job.toolchain.packages]
    name = digest_of([*parts, index.get(FIRST_INDEX, ""), index.get("UV_DEFAULT_INDEX", "")])[:32]
    return {"BUILDFARM_ENVIRONMENT": f"{_PACKAGES}/env-{name}", "BUILDFARM_SHARED_PACKAGES": "1"}


def install_spec(
    job: CompileJob, container: BuildContainer, mounted: Path, torch_index: Sequence[str]
) -> tuple[ContainerSpec, list[str]]:
    """The container in which root installs the packages of a build, and its program; no code of a source runs there."""
    variables = container_variables(job, container, torch_index)
    variables |= shared_environment(job, container, variables)
    spec = ContainerSpec(
        image=container.image,
        labels={OWNER_LABEL: job.owner},
        environment={**index_variables(), **variables, "NVIDIA_VISIBLE_DEVICES": "void"},
        bind_mounts={mounted: _JOB, ca_bundle(): _CA},
        volumes={PACKAGES_VOLUME: _PACKAGES},
        memory=measure_resources().memory,
        user=0,
        capabilities=("DAC_OVERRIDE",),  # the image's folders belong to the build's user
    )
    return spec, script_command(_TOOLS_PYTHON, PurePosixPath(_JOB), "install-packages")


def _volume(kind: str, job: CompileJob) -> str:
    return f"{kind}.{job.recipe.name}"


def write_inputs(
    job: CompileJob, container: BuildContainer, upstream: Upstream, *, torch_index: Sequence[str]
) -> tuple[Path, Path]:
    """Write the inputs of a run; returns the path of cibuildwheel's configuration and the directory to mount.

    `upstream` are the source's own settings; `torch_index` are URLs of indexes that take precedence over the default
    one.
    """
    mounted = job.work / "container"
    mounted.mkdir(exist_ok=True)
    mounted.chmod(0o777)  # the container's user writes results there
    copy_scripts(mounted)
    write_entry_point(mounted)
    (mounted / DRIVER_LIBRARIES_FILE).write_text("\n".join(sorted(DRIVER_LIBRARIES)) + "\n")
    packages = job.toolchain.packages
    options = [] if job.reuse else wheels_only(packages, job.recipe.build_requires)
    (mounted / "requirements.txt").write_text("\n".join([*options, *packages]) + "\n")
    (mounted / "constraints.txt").write_text(constraints(packages))
    if upstream.tests and isinstance(job.recipe.source, PathSource):
        tests = job.recipe.source.path / "tests"  # `prepare_source` does not copy the tests
        if tests.is_dir():
            shutil.copytree(tests, mounted / "tests", ignore=shutil.ignore_patterns("__pycache__", ".pytest_cache"))
    settings = job.work / "cibuildwheel.toml"
    settings.write_text(configuration(job, container, upstream, mounted=mounted, torch_index=torch_index))
    return settings, mounted


def statistics_dir(job: CompileJob) -> Path:
    """Directory in which the compiler cache of a job's container writes its log."""
    return job.work / "container" / "statistics"


def ignored_settings(job: CompileJob, container: BuildContainer, upstream: Upstream) -> list[str]:
    """One sentence about each of the source's own settings that has no effect."""
    variables, recipe = container_variables(job, container, ()), job.recipe.env
    if names := overridden_variables(upstream, variables=variables, recipe=recipe):
        note = f"ignored {', '.join(names)} in the source's [tool.cibuildwheel]: the plan or the recipe sets the value"
        return [*upstream.notes, note]
    return list(upstream.notes)


def configuration(
    job: CompileJob, container: BuildContainer, upstream: Upstream, *, mounted: Path, torch_index: Sequence[str]
) -> str:
    """cibuildwheel's configuration for a job as TOML: buildfarm's settings merged with the source's own.

    A file needs no double quoting, unlike CIBW_ variables, and can be read after the build. The file replaces the
    source's own [tool.cibuildwheel], which also has settings for the CI of the source's authors.
    """
    variables = container_variables(job, container, torch_index)
    if not upstream.before_all and not upstream.before_build:
        # The source's own commands may add headers that the key does not cover, so direct mode stays off with them.
        variables |= {
            "BUILDFARM_HEADERS_DIGEST": digest_of([container.image, list(job.toolchain.parts().items())])[:16],
            "BUILDFARM_SOURCE": SOURCE,
        }
    if not upstream.has_commands:
        # uv needs a cache for the build as well.
        variables |= shared_environment(job, container, variables) | {"UV_CACHE_DIR": f"{CONTAINER_DIR}/own-uv"}
    if upstream.needs_root:
        variables["UV_CACHE_DIR"] = "/root/.cache/uv"  # the shared cache must not get files of root; see shared_uv.py
    create = _create_arguments(job, upstream, mounted, variables)
    lines = {
        "container-engine": {"name": "docker", "create-args": create, "disable-host-mount": True},
        f"manylinux-{machine(job)}-image": container.image,
        "before-build": _before_build(job, upstream),
        "repair-wheel-command": f"{_script('after-build')} {{wheel}} {{dest_dir}}",
        # buildfarm audits the finished wheel itself, after setting its version and tags.
        "audit-command": "",
        "dependency-versions": "latest",
        "test-command": "",
    }
    # The same front end as in the local executor.
    frontend_args = ["--no-build-isolation", "--no-config", *config_setting_options(job.recipe)]
    settings = merge_settings(
        lines,
        upstream,
        frontend_args=frontend_args,
        variables=variables,
        recipe=job.recipe.env,
        config_settings=job.recipe.config_settings,
        job_dir=_JOB,
        before_test=_script("before-test"),
    )
    return "[tool.cibuildwheel]\n" + "".join(f"{key} = {_toml(value)}\n" for key, value in settings.items())


def _create_arguments(job: CompileJob, upstream: Upstream, mounted: Path, variables: Mapping[str, str]) -> list[str]:
    """Arguments of `docker create`: label, limits, mounts, user and environment variables."""
    packages = _volume(PACKAGES_VOLUME, job) if upstream.has_commands else PACKAGES_VOLUME
    create = [
        f"--label={OWNER_LABEL}={job.owner}",
        f"--entrypoint={_JOB}/{ENTRY_POINT}",
        # A compile needs no GPU. NVIDIA's container runtime would refuse the image if the driver is too old for it.
        "--env=NVIDIA_VISIBLE_DEVICES=void",
        "--cap-drop=ALL",
        "--security-opt=no-new-privileges",
        f"--memory={measure_resources().memory}",
        f"--pids-limit={PROCESSES}",
        _mount("bind", mounted, _JOB),
        _mount("volume", packages, _PACKAGES, readonly=not upstream.has_commands),
        # The build's user cannot replace cache entries of root, so root has a volume of its own.
        _mount("volume", f"{_volume(OBJECTS_VOLUME, job)}{'.root' * upstream.needs_root}", _CACHE),
        _mount("bind", ca_bundle(), _CA, readonly=True),
        # In memory: compilers, uv and Python look up every file below this directory, and storage drivers are slow.
        f"--tmpfs={CONTAINER_DIR}:exec,mode=755,uid={USER},gid={USER}",
    ]
    if job.recipe.assume_cuda:
        create.append(_mount("bind", Path(__file__).parents[1] / "assume_cuda", _SHIM, readonly=True))
    if upstream.needs_root:
        create += ["--user=0:0", *(f"--cap-add={name}" for name in _ROOT_CAPABILITIES)]
    if upstream.tests:
        create.append("--env=BUILDFARM_KEEP_ENVIRONMENT=1")  # the environment of the tests uses its Python
    create += [f"--env={name}={value}" for name, value in sorted(variables.items()) if name != FIRST_INDEX]
    # Names only: docker reads the values, which may contain passwords, from its own environment.
    named = {*index_variables(), *({FIRST_INDEX} & variables.keys())}
    return create + [f"--env={name}" for name in sorted(named) if name == FIRST_INDEX or name not in variables]


def container_variables(job: CompileJob, container: BuildContainer, torch_index: Sequence[str]) -> dict[str, str]:
    """Environment variables of the build in the container; the recipe's `env` takes precedence."""
    python = job.toolchain.python
    prefix = python_prefix(python)
    suffix = "t" if python.free_threaded else ""
    site = f"{prefix}/lib/python{python.major}.{python.minor}{suffix}/site-packages"
    toolkit = "/usr/local/cuda" if container.has_toolkit else f"{site}/nvidia/cu{job.build.cuda.major}"
    variables = {
        **build_variables(job),
        **ca_variables(_CA),
        **cache_variables(_OBJECTS, f"{_JOB}/statistics", f"{_CACHE}/objects", f"{_OBJECTS}/server.sock"),
        **compiler_variables(_OBJECTS, toolkit=toolkit, site=site, cc="gcc", cxx="g++", path=container.contents.path),
        **reuse_variables(job.source, enabled=container.compiler_cache, reuse=job.reuse),
        "BUILDFARM_ENVIRONMENT": f"{_PACKAGES}/{environment_name(job)}",
        "BUILDFARM_JOB_DIR": _JOB,
        "BUILDFARM_PACKAGES": _PACKAGES,
        "BUILDFARM_PREFIX": prefix,
        "BUILDFARM_TORCH_CUDA": str(job.build.cuda),
        "GIT_CEILING_DIRECTORIES": str(PurePosixPath(SOURCE).parent),
        "UV_CACHE_DIR": _PACKAGES,
        "UV_LINK_MODE": "hardlink",
        "UV_NO_PROGRESS": "1",
        "UV_PYTHON_DOWNLOADS": "never",
    }
    if not container.has_toolkit:
        variables["BUILDFARM_LINK_TOOLKIT"] = "1"
    if job.recipe.assume_cuda:
        variables["PYTHONPATH"] = _SHIM
    if torch_index:
        variables[FIRST_INDEX] = " ".join(torch_index)
    return merge_variables(variables, job.recipe.env)


def _before_build(job: CompileJob, upstream: Upstream) -> str:
    """Prepare the build; ask its backend for name and version, unless the source's own commands run afterwards."""
    prepare, question = _script("before-build"), identity_question(job)
    if not question or upstream.before_build:
        return prepare
    python = f"{python_prefix(job.toolchain.python)}/bin/python"
    return f"{prepare} && {_script('check-identity')} {shlex.join([python, SOURCE, question])}"


def _script(command: str) -> str:
    """The command line of a script in the container."""
    return shlex.join(script_command(_TOOLS_PYTHON, PurePosixPath(_JOB), command))


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
