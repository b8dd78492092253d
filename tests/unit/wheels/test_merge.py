from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from cibuildwheel.environment import parse_environment

from builder.wheels.cibuildwheel.merge import (
    BEFORE_BUILD_FOLD,
    TEST_FOLD,
    constraints,
    merge_settings,
    overridden_variables,
)
from builder.wheels.cibuildwheel.upstream import Upstream, UpstreamTests

FARM = dict.fromkeys(["TORCH_CUDA_ARCH_LIST", "CUDA_HOME", "MAX_JOBS", "PATH", "WITH_Y"], "ours") | {"CPPFLAGS": "-g0"}
RECIPE = {"WITH_Y", "FORCE_CUDA"}
OURS = {"before-build": "run before-build", "test-command": "", "manylinux-x86_64-image": "ours"}


def settings(upstream: Upstream, **more: Any) -> dict[str, Any]:
    return merge_settings(
        {**OURS, **more},
        upstream,
        frontend_args=["--no-config"],
        variables=FARM,
        recipe=RECIPE,
        before_test="run before-test",
    )


def test_a_source_without_settings_changes_nothing() -> None:
    got = settings(Upstream())
    assert {key: got[key] for key in OURS} == OURS
    assert got["build-frontend"] == {"name": "uv", "args": ["--no-config"]}
    assert (got["before-all"], got["config-settings"]) == ("", "")
    assert not {"environment", "before-test", "test-environment"} & set(got)


def test_which_variables_are_overridden() -> None:
    names = ["WITH_X", "TORCH_CUDA_ARCH_LIST", "MAX_JOBS", "WITH_Y", "FORCE_CUDA", "CUDA_HOME"]
    upstream = Upstream(environment=tuple((name, '"theirs"') for name in names))
    assert settings(upstream)["environment"] == 'WITH_X="theirs" MAX_JOBS="theirs"'
    assert overridden_variables(upstream, variables=FARM, recipe=RECIPE) == [
        "TORCH_CUDA_ARCH_LIST",
        "WITH_Y",
        "FORCE_CUDA",
        "CUDA_HOME",
    ]


def test_the_plans_nvcc_precedes_the_sources_path() -> None:
    upstream = Upstream(environment=(("PATH", '"/usr/local/cuda-9/bin:$PATH"'),))
    environment = parse_environment(settings(upstream)["environment"])
    got = environment.as_dictionary({"PATH": "/usr/bin", "CUDA_HOME": "/plan", "BUILDFARM_OBJECTS": "/cache"})
    assert got["PATH"] == "/cache/launch:/plan/bin:/usr/local/cuda-9/bin:/usr/bin"


@pytest.mark.parametrize("theirs", ["-DX=1", "'-DX=1'", '"$FLAG"'])
def test_the_sources_flags_are_appended(theirs: str) -> None:
    upstream = Upstream(environment=(("CPPFLAGS", theirs), ("LDFLAGS", theirs)))
    assert overridden_variables(upstream, variables=FARM, recipe=RECIPE) == []
    environment = parse_environment(settings(upstream)["environment"])
    got = environment.as_dictionary({"CPPFLAGS": FARM["CPPFLAGS"], "FLAG": "-DX=1"})
    assert (got["CPPFLAGS"], got["LDFLAGS"]) == ("-g0 -DX=1", "-DX=1")


def test_the_sources_options_come_last() -> None:
    got = settings(Upstream(frontend_args=("--config-setting=a=1",), config_settings="b='2 3'"))
    assert got["build-frontend"]["args"] == ["--no-config", "--config-setting=a=1"]
    assert got["config-settings"] == "b='2 3'"


@pytest.mark.parametrize(
    ("prepare", "theirs", "output", "status"),
    [
        ("true", "echo theirs $UV_CONSTRAINT", f"{BEFORE_BUILD_FOLD}\ntheirs /buildfarm/job/constraints.txt\n", 0),
        ("exit 7", "echo theirs", "", 7),
        ("true", "false\necho goes on", f"{BEFORE_BUILD_FOLD}\ngoes on\n", 0),
        ("true", "echo last && exit 3 # said why", f"{BEFORE_BUILD_FOLD}\nlast\n", 3),
    ],
)
def test_the_sources_before_build_follows_buildfarms(prepare: str, theirs: str, output: str, status: int) -> None:
    upstream = Upstream(before_build=theirs)
    command = settings(upstream, **{"before-build": f"({prepare})"})["before-build"]
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == (output, status)


def test_the_sources_tests_get_the_builds_torch_and_no_shim(tmp_path: Path) -> None:
    tests = UpstreamTests(
        command="echo theirs; ls; exit 4",
        before="echo before",
        sources=("tests", "a b/data"),
        requires=("pytest<9", "x; python_version<'3'"),
        extras="more",
        environment=(("QUIET", '"1"'),),
    )
    got = settings(Upstream(tests=tests))
    assert got["before-test"] == "run before-test || exit\necho before"
    assert (got["test-requires"], got["test-extras"]) == (["pytest<9", "x; python_version<'3'"], "more")
    variables = parse_environment(got["test-environment"]).as_dictionary({"PYTHONPATH": "/shim"})
    assert variables["PYTHONPATH"] == ""
    assert variables["UV_CONSTRAINT"] == variables["PIP_CONSTRAINT"] == "/buildfarm/job/constraints.txt"
    assert variables["QUIET"] == "1"

    project, there = tmp_path / "project", tmp_path / "cwd"
    environments = [tmp_path / "env", tmp_path / "env-test"]
    for folder in (project / "tests", project / "a b/data", project / "src", there, *environments):
        folder.mkdir(parents=True)
    (there / "test_fail.py").touch()
    command = got["test-command"].replace("{project}", str(project))
    done = subprocess.run(
        ["sh", "-c", command],
        cwd=there,
        env={"BUILDFARM_ENVIRONMENT": str(tmp_path / "env"), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.split("\n")) == (4, [TEST_FOLD, "theirs", "a b", "tests", ""])
    assert (there / "a b/data").is_dir()
    assert not [environment for environment in environments if environment.exists()]


def test_missing_test_sources_fail_the_test(tmp_path: Path) -> None:
    command = settings(Upstream(tests=UpstreamTests("echo theirs", sources=("no",))))["test-command"]
    done = subprocess.run(
        ["sh", "-c", command.replace("{project}", str(tmp_path))], cwd=tmp_path, capture_output=True, check=False
    )
    assert done.returncode != 0
    assert b"theirs" not in done.stdout.replace(TEST_FOLD.encode(), b"")


def test_only_torch_and_cuda_are_constrained() -> None:
    packages = ["cuda-bindings==13.0.1", "ninja==1.13", "numpy==2.4", "nvidia-cuda-nvcc==13.0.88", "pytorch-x==1"]
    packages += ["torch==2.11.0+cu130", "torchvision==0.26.0", "triton==3.6.0"]
    assert constraints(packages).split() == [
        "cuda-bindings==13.0.1",
        "nvidia-cuda-nvcc==13.0.88",
        "torch==2.11.0+cu130",
        "triton==3.6.0",
    ]
