"""Checks of a compiled wheel against its recipe, its source and its log."""

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from packaging.version import Version

from builder.errors import BuildError
from builder.matrix.axes import Cuda, Torch
from builder.matrix.config import SdistSource, name_pattern
from builder.records import CudaSources
from builder.wheels.build_scripts import identity
from builder.wheels.build_scripts.identity import DIFFERS
from builder.wheels.job import CompileJob
from builder.wheels.wheel_checks import (
    answered_identity,
    asking,
    check_identity,
    check_source,
    find_cuda_sources,
    identity_question,
    other_identity,
    without_compiled,
)
from tests.unit.matrix import make
from tests.unit.wheels.make_record import BUILD, TOOLCHAIN


def job(name: str, version: str, work: Path = Path(), files: Mapping[str, str] | None = None) -> CompileJob:
    """A job whose source has these files."""
    recipe = replace(make.recipe("ops"), name=name, version=version)
    build = replace(BUILD, extension=name, version=version)
    made = CompileJob(build, recipe, TOOLCHAIN, work, Path("log"), 1, "")
    for file, text in (files or {}).items():
        made.source.mkdir(exist_ok=True)
        (made.source / file).write_text(text)
    return made


@pytest.mark.parametrize(
    ("name", "version", "sentence", "hint"),
    [
        ("my_ops", "0.4.0", "makes a wheel with the version 0.3.0 instead of 0.4.0", "write the same version into"),
        ("ops", "0.3.0", "makes a wheel with the name my_ops instead of ops", "set `name: my_ops`"),
        ("my_ops", "0.3.0.dev1", "the version 0.3.0 instead of 0.3.0.dev1", "write the same version into"),
    ],
)
def test_another_name_or_version(name: str, version: str, sentence: str, hint: str) -> None:
    check_identity(Path("my_ops-0.3.0+pt211-cp312-cp312-linux_x86_64.whl"), job("My.Ops", "0.3"))
    with pytest.raises(BuildError) as caught:
        check_identity(Path("my_ops-0.3.0-cp312-cp312-linux_x86_64.whl"), job(name, version))
    assert sentence in caught.value.sentence
    assert hint in caught.value.hints[0]


SETUP = "import os\nfrom setuptools import setup\nsetup(name='ops' + os.getenv('END', ''), version='1.0')\n"
BACKEND = """\
import pathlib

def prepare_metadata_for_build_wheel(folder, config_settings=None):
    info = pathlib.Path(folder, "ops-1.0.dist-info")
    info.mkdir()
    options = "".join(config_settings.get("name", ()))
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\\nName: ops{options}\\nVersion: {VERSION}\\n")
    return info.name
"""


@pytest.mark.parametrize(
    ("version", "options", "status"),
    [
        ("1.0", (), 0),
        ("1.0.0+cu130.abc", (), 0),
        ("1.0", ("_cu130",), DIFFERS),
        ("1.1", (), DIFFERS),
        ("1.0-rc.1", (), 0),  # not in its normal form: compared after the compile
        ("None\nboom", (), 0),
    ],
)
def test_the_build_backend_is_asked_for_name_and_version(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], version: str, options: tuple[str, ...], status: int
) -> None:
    project = "[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = ['.']\n"
    backend = BACKEND.replace("VERSION", repr(version)[1:-1])
    asked = job("ops", "1.0", tmp_path, {"backend.py": backend, "pyproject.toml": project})
    asked = replace(asked, recipe=replace(asked.recipe, config_settings={"name": options}))
    ask = asking(identity_question(asked), sys.executable, identity.__file__, asked.source)
    assert subprocess.run(["sh", "-c", ask], check=False).returncode == status
    answer = answered_identity(capfd.readouterr().out)
    if status:
        assert answer is not None
        assert other_identity(asked, *answer) is not None


def test_the_version_of_a_source_from_elsewhere_is_changed_by_a_patch() -> None:
    own = job("ops", "1.0.post1")
    upstream = replace(own, recipe=replace(own.recipe, source=SdistSource("ops", "1.0", "0" * 64)))
    for asked, cure in (
        (own, "write the same version into extension.yaml and into the source"),
        (upstream, "set `version: 1.0` in extension.yaml, or patch the version of the source (`patches`)"),
    ):
        error = other_identity(asked, "ops", Version("1.0"))
        assert error is not None
        assert error.hints[0] == cure


@pytest.mark.parametrize(
    ("files", "asked"),
    [
        ({"pyproject.toml": "[project]\nname = 'ops'\nversion = '1.0'\n"}, False),
        ({"pyproject.toml": "[project]\nname = 'ops'\ndynamic = ['version']\n"}, True),
        ({"setup.py": "from setuptools import setup\nsetup(name='ops', version='1.0')\n"}, False),
        ({"setup.py": SETUP}, True),
        ({"setup.py": "setup(name='ops', version='1.0')\n", "setup.cfg": "[metadata]\nversion = attr: ops.v\n"}, True),
        ({"pyproject.toml": "[build-system]\nbuild-backend = 'other'\n"}, True),
    ],
)
def test_a_backend_is_asked_only_for_what_the_files_do_not_state(
    tmp_path: Path, files: dict[str, str], asked: bool
) -> None:
    assert bool(identity_question(job("ops", "1.0", tmp_path, files))) is asked


def test_numbers_of_the_cell_in_a_name() -> None:
    recipe = replace(make.recipe("ops"), pattern="ops-cu{cuda}-torch{torch}")
    assert recipe.wheel_name(Torch(2, 11, 0), Cuda(12, 6)) == "ops-cu126-torch211"
    assert recipe.makes("ops_cu126_torch211")
    assert not recipe.makes("ops_cu126")
    for name in ("ops-cu130", "ops-cuda13x", "ops-cu13", "ops-130-pt211"):
        pattern = name_pattern(name, Torch(2, 11, 0), Cuda(13, 0))
        assert "{cuda" in pattern
        assert replace(recipe, pattern=pattern).wheel_name(Torch(2, 11, 0), Cuda(13, 0)) == name
    assert name_pattern("ops130x", Torch(2, 11, 0), Cuda(12, 6)) == "ops130x"


LOGS = {
    "ninja": "[1/2] /t/bin/nvcc -I/x -c -c /var/tmp/src/csrc/a.cu -o /var/tmp/src/build/csrc/a.o -O3",
    "setuptools": "/t/bin/nvcc -I/x -c csrc/a.cu -o build/temp/csrc/a.o",
    "cmake": "[ 50%] Building CUDA object CMakeFiles/x.dir/csrc/a.cu.o",
}


@pytest.mark.parametrize("log", LOGS.values(), ids=LOGS)
def test_cuda_files_that_were_never_compiled_are_named(tmp_path: Path, log: str) -> None:
    for name, text in {
        "csrc/a.cu": '#include "detail/b.cu"',
        "csrc/detail/b.cu": "",
        "csrc/forgotten_a.cu": "",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    before = find_cuda_sources(tmp_path, "setup.py")
    assert before == CudaSources(3, ("csrc/a.cu", "csrc/forgotten_a.cu"), "setup.py")
    mentioned = "copying csrc/forgotten_a.cu -> build/lib/csrc\n"
    assert without_compiled(before, mentioned + log).never_compiled == ("csrc/forgotten_a.cu",)


@pytest.mark.parametrize(
    ("setup", "assumed", "asks"),
    [
        ("# do not call torch.cuda.is_available()", False, ""),
        ("ok = torch.cuda.is_available()", False, "setup.py"),
        ("ok = torch.cuda.is_available()", True, ""),
    ],
)
def test_a_setup_py_that_asks_for_a_gpu_is_named(tmp_path: Path, setup: str, asks: str, *, assumed: bool) -> None:
    asked = job("ops", "1.0", tmp_path, {"setup.py": setup})
    asked = replace(asked, recipe=replace(asked.recipe, assume_cuda=assumed))
    assert check_source(asked).cuda.asks_for_gpu == asks
