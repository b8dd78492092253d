"""A source with its own [tool.cibuildwheel], in real containers: effects of each setting, failures of each step."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from textwrap import dedent
from uuid import uuid4
from zipfile import ZipFile

import pytest

from builder.errors import BuildError
from builder.hashing import digest_of
from builder.images.chooser import ImageChooser
from builder.images.container import OWNER_LABEL
from builder.matrix.axes import AbiClass, Arch, Cell
from builder.matrix.compat import Compat
from builder.matrix.config import ImageRule, PathSource
from builder.matrix.plan import Build
from builder.store import Store
from builder.wheels.cibuildwheel.config import PACKAGES_VOLUME, environment_name
from builder.wheels.cibuildwheel.executor import DockerExecutor
from builder.wheels.job import CompileJob
from builder.wheels.sources.prepare import prepare_source
from builder.wheels.toolchain.environments import Environments
from tests.conftest import needs_images
from tests.unit.matrix import make

pytestmark = [pytest.mark.docker, pytest.mark.network, pytest.mark.slow]

BASE, PYTHONS = "buildfarm-base:bookworm", "buildfarm-pythons:local"
CELL = Cell.parse("torch2.11.0-cu130-cp312")

# The extension contains the settings as a string, so that the test can read them from the wheel.
BACKEND = """
import os
from setuptools.build_meta import *
from setuptools import build_meta

def build_wheel(folder, config_settings=None, metadata=None):
    os.environ["TOLD"] = config_settings["told"] if config_settings else ""
    return build_meta.build_wheel(folder, None, metadata)
"""

SETUP = """
import os
from setuptools import Extension, setup

said = ";".join(f"{name}={os.environ.get(name, '')}" for name in ("THEIRS", "LAST", "OURS", "TOLD", "HOST", "CPPFLAGS"))
said += f";archs={os.environ['TORCH_CUDA_ARCH_LIST']};"
said += f"all={os.path.exists('/etc/from-before-all')};build={os.path.exists('from-before-build')};"
toy = Extension("toy", ["toy.c"], define_macros=[("SAID", f'"{said}"')])
setup(name="toy", version="1.0", ext_modules=[toy], extras_require={"more": ["iniconfig"]})
"""

SOURCE = """
#include <Python.h>
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "toy", NULL, -1, NULL};
PyMODINIT_FUNC PyInit_toy(void) {
    PyObject *made = PyModule_Create(&module);
    PyModule_AddStringConstant(made, "SAID", SAID);
    return made;
}
"""

HEAD = """
[build-system]
requires = ["setuptools"]
build-backend = "backend"
backend-path = ["."]
"""

FULL = r"""
[tool.cibuildwheel]
skip = "cp312-*"
manylinux-x86_64-image = "manylinux1"
before-all = ["test $(id -u) = 0", "touch /etc/from-before-all"]
before-build = '''
python -c "import torch"
pip --version
touch from-before-build
'''
environment = {THEIRS = "$(echo it)", LAST = "global", OURS = "theirs", CPPFLAGS = "-DMORE", TORCH_CUDA_ARCH_LIST = "7"}
environment-pass = ["HOST"]
config-settings = {told = "yes"}
before-test = "touch before-test"
test-command = "python tests/check.py && test ! -e test_fail.py"
test-sources = ["tests"]
test-requires = ["tomli-w"]
test-extras = ["more"]
test-environment = {QUIETLY = "yes"}

[tool.cibuildwheel.linux]
inherit = {environment = "append"}
environment = {LAST = "linux"}

[[tool.cibuildwheel.overrides]]
select = "*-manylinux_*"
inherit = {environment = "append"}
environment = {LAST = "override"}
"""

CHECK = """
import os, sys
import iniconfig, tomli_w, toy, torch

assert os.environ["QUIETLY"] == "yes"
assert os.path.exists("/project/before-test")
assert "THEIRS=it" in toy.SAID
assert torch.version.cuda == "13.0" and not torch.cuda.is_available()
assert os.path.realpath(torch.__file__).startswith(os.path.realpath(sys.prefix)), torch.__file__
assert sys.prefix != os.environ["BUILDFARM_PREFIX"]
print("checked", torch.__version__)
"""

#: Files of root in the volume of packages, except the lock files of environments.
OF_ROOT = "find . -mindepth 1 -user 0 ! -name 'buildfarm-*.lock'"


@pytest.fixture(scope="module")
def executor(store: Path) -> DockerExecutor:
    needs_images(BASE, PYTHONS)
    farm = Store(store)
    matrix = replace(make.matrix(["2.11"], ["13.0"], ["3.12"]), images=(ImageRule("*", BASE, PYTHONS),))
    return DockerExecutor(
        Environments(farm, "https://wheels.invalid/{variant}"), farm, ImageChooser(matrix, Compat.load(), {})
    )


@pytest.fixture
def make_job(executor: DockerExecutor, tmp_path: Path) -> Callable[..., CompileJob]:
    build = Build(
        "toy", "1.0", AbiClass.CPYTHON, CELL.torch, CELL.cuda, (CELL.python,), (Arch(9, 0),), CELL.platform, (CELL,)
    )
    folder = tmp_path / "recipe"
    log = tmp_path / "log"

    def make_it(settings: str, *, skip: tuple[str, ...] = (), check: str = CHECK) -> CompileJob:
        files = {"backend.py": BACKEND, "setup.py": SETUP, "toy.c": SOURCE, "tests/check.py": check}
        for name, text in {**files, "pyproject.toml": HEAD + dedent(settings)}.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        recipe = replace(
            make.recipe("toy"),
            source=PathSource(folder),
            env={"OURS": "ours"},
            assume_cuda=True,
            cibuildwheel_skip=skip,
        )
        toolchain = executor.toolchain(build, recipe, log=log)
        source, work = tmp_path / "source", tmp_path / "work"
        source.mkdir()
        work.mkdir()
        prepare_source(recipe, source, cache=tmp_path / "cache")
        digest = digest_of(uuid4().hex)
        return CompileJob(build, recipe, toolchain, source, work, log, 2, digest, f"test/{digest[:16]}")

    return make_it


def in_cache(script: str) -> list[str]:
    """Output of a shell command in the extension's own volume of packages, split into words."""
    argv = [
        "docker",
        "run",
        "--rm",
        f"--volume={PACKAGES_VOLUME}.toy:/cache",
        "--workdir=/cache",
        BASE,
        "sh",
        "-c",
        script,
    ]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()


def containers(job: CompileJob) -> list[str]:
    argv = ["docker", "ps", "--all", "--quiet", "--filter", f"label={OWNER_LABEL}={job.owner}"]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()


def environments_left(job: CompileJob) -> list[str]:
    """What is left of the environments of the build and of its tests."""
    name = environment_name(job)
    return in_cache(f"ls -d {name} {name}-test 2>/dev/null || true")


def compiled_in(wheel: Path) -> bytes:
    with ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.startswith("toy.") and name.endswith(".so"))
        return archive.read(name)


def test_every_setting_takes_effect(
    executor: DockerExecutor, make_job: Callable[..., CompileJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOST", "of the host")
    warnings: list[str] = []
    monkeypatch.setattr("builder.wheels.cibuildwheel.executor.print_warning", warnings.append)
    job, stages = make_job(FULL), list[str]()
    of_root = in_cache(OF_ROOT)
    wheel = executor.compile(job, stages.append)
    log = job.log.read_text()

    settings = compiled_in(wheel)
    assert b"THEIRS=it;LAST=override;OURS=ours;TOLD=yes;HOST=;CPPFLAGS=-g0 -DMORE;" in settings
    assert b"archs=9.0;all=True;build=True;" in settings
    assert "\nchecked 2.11.0" in log
    assert [stage for stage in stages if stage in {"compile", "test"}] == ["compile", "test"]
    assert "`skip` in the source's [tool.cibuildwheel]: the source excludes cp312-manylinux_x86_64" in warnings[0]
    assert "`manylinux-x86_64-image`" in warnings[1]
    assert "OURS, TORCH_CUDA_ARCH_LIST" in warnings[2]

    assert containers(job) == []
    assert environments_left(job) == []
    assert set(in_cache(OF_ROOT)) <= set(of_root), "the build's user could not use these files"


@pytest.mark.parametrize(
    ("settings", "check", "stage", "sentence", "hint"),
    [
        (
            'before-all = "yum install -y zlib-devel"',
            "",
            "before-all",
            r"`before-all` of the source's \[tool\.cibuildwheel\] failed: .*yum: .*not found",
            f"the command is for a different distribution: {BASE} has no yum",
        ),
        (
            'before-build = "pip install torch==2.9.1"',
            "",
            "before-build",
            r"`before-build` of the source's \[tool\.cibuildwheel\] failed: .*conflict",
            "skip the step with `cibuildwheel_skip: [before-build]` in the recipe",
        ),
        (
            'test-command = "python {project}/tests/check.py"',
            "import toy\nassert toy.SAID == 'no'\n",
            "test",
            "the source's own tests of the wheel failed: AssertionError",
            "skip the step with `cibuildwheel_skip: [test]` in the recipe",
        ),
    ],
    ids=["before-all", "before-build", "test"],
)
def test_each_failing_step_has_an_error(
    executor: DockerExecutor,
    make_job: Callable[..., CompileJob],
    settings: str,
    check: str,
    stage: str,
    sentence: str,
    hint: str,
) -> None:
    job = make_job(f"[tool.cibuildwheel]\n{settings}\n", check=check)
    with pytest.raises(BuildError, match=sentence) as caught:
        executor.compile(job, lambda _: None)
    assert caught.value.stage == stage
    assert caught.value.hints[0] == hint
    assert containers(job) == []
    assert environments_left(job) == []


def test_skipped_parts_are_not_run(executor: DockerExecutor, make_job: Callable[..., CompileJob]) -> None:
    settings = (
        '[tool.cibuildwheel]\nbefore-all = "yum install x"\ntest-command = "false"\nconfig-settings = {told = "1"}\n'
    )
    job = make_job(settings, skip=("before-all", "test"))
    assert b"TOLD=1;HOST=;CPPFLAGS=-g0;archs=9.0;all=False;" in compiled_in(executor.compile(job, lambda _: None))
