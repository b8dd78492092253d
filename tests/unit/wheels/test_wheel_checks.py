"""Checks of a compiled wheel against its recipe, its source and its log."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from builder.errors import BuildError
from builder.records.cuda_sources import CudaSources
from builder.wheels.job import CompileJob
from builder.wheels.wheel_checks import check_identity, find_cuda_sources, unmet_requirements, without_compiled
from tests.unit.matrix import make
from tests.unit.wheels.make_record import BUILD, TOOLCHAIN


def job(name: str, version: str) -> CompileJob:
    recipe = replace(make.recipe("ops"), name=name, version=version)
    return CompileJob(BUILD, recipe, TOOLCHAIN, Path(), Path(), Path("log"), 1, "", "")


@pytest.mark.parametrize(
    ("name", "version", "wheel"),
    [
        ("my-ops", "0.4.0", "my_ops-0.4.0-cp312-cp312-linux_x86_64.whl"),
        ("My.Ops", "0.4", "my_ops-0.4.0-cp312-cp312-linux_x86_64.whl"),
        ("my_ops", "0.4.0", "my_ops-0.4.0+pt211cu130-cp312-cp312-linux_x86_64.whl"),
    ],
)
def test_the_same_name_and_public_version(name: str, version: str, wheel: str) -> None:
    check_identity(Path(wheel), job(name, version))


@pytest.mark.parametrize(
    ("name", "version", "sentence", "hint"),
    [
        ("my_ops", "0.4.0", "made a wheel with the version 0.3.0 instead of 0.4.0", "set `version: 0.3.0`"),
        ("ops", "0.3.0", "made a wheel with the name my_ops instead of ops", "set `name: my_ops`"),
        ("my_ops", "0.3.0.dev1", "the version 0.3.0 instead of 0.3.0.dev1", "set `version: 0.3.0`"),
    ],
)
def test_another_name_or_version(name: str, version: str, sentence: str, hint: str) -> None:
    with pytest.raises(BuildError) as caught:
        check_identity(Path("my_ops-0.3.0-cp312-cp312-linux_x86_64.whl"), job(name, version))
    assert sentence in caught.value.sentence
    assert hint in caught.value.hints[0]


LOGS = {
    "ninja": "[1/2] /t/bin/nvcc -I/x -c -c /var/tmp/src/csrc/a.cu -o /var/tmp/src/build/csrc/a.o -O3",
    "setuptools": "/t/bin/nvcc -I/x -c csrc/a.cu -o build/temp/csrc/a.o",
    "cmake": "[ 50%] Building CUDA object CMakeFiles/x.dir/csrc/a.cu.o",
}


SETUPS = {"# do not call torch.cuda.is_available()": "", "ok = torch.cuda.is_available()": "setup.py"}


@pytest.mark.parametrize(("setup", "asks"), SETUPS.items(), ids=["comment", "code"])
@pytest.mark.parametrize("log", LOGS.values(), ids=LOGS)
def test_cuda_files_that_were_never_compiled_are_named(tmp_path: Path, log: str, setup: str, asks: str) -> None:
    for name, text in {
        "setup.py": setup,
        "csrc/a.cu": '#include "detail/b.cu"',
        "csrc/detail/b.cu": "",
        "csrc/forgotten_a.cu": "",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    before = find_cuda_sources(tmp_path, make.recipe("ops"))
    assert before == CudaSources(3, ("csrc/a.cu", "csrc/forgotten_a.cu"), asks)
    mentioned = "copying csrc/forgotten_a.cu -> build/lib/csrc\n"
    assert without_compiled(before, mentioned + log).never_compiled == ("csrc/forgotten_a.cu",)
    assert find_cuda_sources(tmp_path, replace(make.recipe("ops"), assume_cuda=True)).asks_for_gpu == ""


def test_requirements_of_the_build_system_that_the_environment_does_not_meet(tmp_path: Path) -> None:
    assert unmet_requirements(tmp_path, ()) == []
    (tmp_path / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools>=77", "torch", "scikit-build-core", "ninja<1", "x; os_name==\'a\'"]\n'
    )
    packages = ("setuptools==80.0", "torch==2.11.0+cu130", "ninja==1.13.0")
    assert unmet_requirements(tmp_path, packages) == ["scikit-build-core", "ninja<1"]
