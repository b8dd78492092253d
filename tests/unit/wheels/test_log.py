from __future__ import annotations

import ast
import inspect
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import cibuildwheel.platforms.linux
import pytest

from builder.errors import BuildError
from builder.matrix.axes import Python
from builder.records import Toolchain
from builder.wheels.build_scripts.identity import ANSWER
from builder.wheels.cibuildwheel import log as log_module
from builder.wheels.job import CompileJob
from tests.conftest import wait_until
from tests.unit.matrix import make
from tests.unit.wheels.make_record import build_for

BUILD = build_for("torch2.11.0-cu130-cp311")
EARLIER = "::group::Repairing wheel...\nerror: of an earlier run\n"

OURS = "::group::Running before_build...\n\n    + sh -c 'x'\n"
BUILDING = "::group::Building wheel...\n\n    + uv build\n"
REPAIRING = "::endgroup::Building wheel...\n   done 12.00s\n::group::Repairing wheel...\n\n    + sh -c 'x'\n"
COMMAND_FAILED = "::error::cibuildwheel: Command ['sh', '-c', 'x'] failed with code 1. \n\n"


#: Adds an output to the log of a job, and returns the error of the run.
Fail = Callable[..., BuildError]


@pytest.fixture
def job(tmp_path: Path) -> CompileJob:
    toolchain = Toolchain(executor="docker", python=Python(3, 11))
    log = tmp_path / "log"
    log.write_text(EARLIER)
    return CompileJob(
        BUILD, make.recipe("toy"), toolchain, tmp_path, tmp_path, log, jobs=4, digest="d" * 64, owner="s/m"
    )


@pytest.fixture
def fail(job: CompileJob) -> Fail:
    def fail(output: str, status: int = 1) -> BuildError:
        with job.log.open("a") as stream:
            stream.write(output)
        error = log_module.run_error(job, len(EARLIER), status)
        assert "earlier run" not in error.sentence
        assert error.hints[-1] == f"the full output is in {job.log}"
        return error

    return fail


def test_another_version_ends_a_build_before_its_compile(job: CompileJob) -> None:
    with job.log.open("a") as stream:
        stream.write(f"{OURS}{ANSWER} toy 1.1\n{COMMAND_FAILED}")
    error = log_module.run_error(job, len(EARLIER), 1)
    assert "makes a wheel with the version 1.1 instead of 1.0" in error.sentence


def test_a_wheel_without_libraries_names_the_option_that_the_source_waits_for(job: CompileJob, fail: Fail) -> None:
    (job.source / "setup.py").write_text("import sys\nif '--cuda_ext' in sys.argv:\n    pass\n")
    error = fail(BUILDING, 5)
    assert "the wheel contains no library" in error.sentence
    assert "--cuda_ext" in error.hints[0]


FULL = "error: write failed: No space left on device\n"
EXITED = "RuntimeError: Failed to read the return code, the container shell has exited\n"


@pytest.mark.parametrize(
    ("output", "stage", "sentence", "status"),
    [
        (
            "Unable to find image\ndocker: Error response from daemon: no such image.\n" + COMMAND_FAILED,
            "environment",
            "the container did not become ready: no such image.",
            1,
        ),
        (COMMAND_FAILED, "environment", "did not become ready: Command ['sh', '-c', 'x'] failed with code 1.", 1),
        (OURS + "error: Failed to fetch torch\n", "environment", "not become ready: Failed to fetch torch", 1),
        (
            OURS + "error: of before\n" + BUILDING + "a.cpp:3:1: error: 'x' was not declared\n"
            "error: Failed to build\n" + COMMAND_FAILED,
            "compile",
            "a.cpp:3:1: error: 'x' was not declared",
            1,
        ),
        (BUILDING + COMMAND_FAILED, "compile", "the build exited with status 1", 1),
        (
            BUILDING + REPAIRING + "auditwheel: error: cannot repair\n" + COMMAND_FAILED,
            "repair",
            "auditwheel failed: cannot repair",
            1,
        ),
        # A build that prints the name of a step.
        (
            BUILDING + "Repairing wheel...\n  ::group::Testing wheel...\n::group::of its own\nx.cu: error: no\n",
            "compile",
            "x.cu: error: no",
            1,
        ),
        (
            "::error::cibuildwheel: No build identifiers selected\n",
            "environment",
            "the source does not support Python 3.11",
            3,
        ),
        (BUILDING + "::error::cibuildwheel: \n", "compile", "contains no library", 5),
        (BUILDING + REPAIRING + "error: x\n", "repair", "auditwheel failed: x", 8),
        (BUILDING, "compile", "the build exited with status 10", 10),
        (BUILDING, "compile", "killed by signal 15", -15),
        (BUILDING + FULL, "compile", "the disk is full; unfinished files were deleted", 1),
        (REPAIRING + FULL, "repair", "the disk is full (repair stage); unfinished files were deleted", 1),
        (OURS + FULL, "environment", "the disk is full (environment stage); unfinished files were deleted", 1),
        (f"{BUILDING}x.cu: error: half a line\n{EXITED}", "compile", "the container ended during the compile stage", 1),
    ],
)
def test_an_error_has_its_stage_and_its_cause(fail: Fail, output: str, stage: str, sentence: str, status: int) -> None:
    error = fail(output, status)
    assert error.stage == stage
    assert sentence in error.sentence


def test_every_step_of_cibuildwheel_is_known() -> None:
    """Read from cibuildwheel's source: with different names of steps, stages would not be recognised."""
    arguments = {
        node.args[0]
        for node in ast.walk(ast.parse(inspect.getsource(cibuildwheel.platforms.linux)))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "log.step"
    }
    steps = {ast.literal_eval(argument) for argument in arguments if isinstance(argument, ast.Constant)}
    ours = {step.removeprefix("::group::") for step in log_module._STEPS} - {"Starting container image"}
    unused = {"Running before_all...", "Testing wheel..."}  # buildfarm writes no such commands
    assert steps - {"Copying project into container..."} - unused == ours


KILLED = [
    "g++: fatal error: Killed signal terminated program cc1plus",
    "nvcc error   : 'cicc' died due to signal 9 (Kill signal)",
    "error: command '/usr/bin/g++' failed with exit code -9",
    "Killed",
    "::error::cibuildwheel: Command ['uv', 'build'] failed with code 137. ",
]


@pytest.mark.parametrize("line", KILLED)
def test_a_killed_compiler_is_no_error_of_the_source(fail: Fail, line: str) -> None:
    error = fail(f"{BUILDING}x.cu: error: because of it\n{line}\n")
    assert error.sentence == "a compiler was killed, probably because memory ran out"
    assert "`--jobs 2`" in error.hints[0]


def test_stages_are_reported_when_they_begin(tmp_path: Path) -> None:
    log, stages, opens = tmp_path / "log", list[str](), [True, False]
    log.write_text(EARLIER)

    def append(text: str, until: int) -> None:
        with log.open("a") as stream:
            stream.write(text)
        wait_until(lambda: len(stages) >= until, lambda: f"{until} stages: {stages}")

    with log_module.followed(log, len(EARLIER), stages.append, opens.pop):
        append("::group::Starting container image x...\n" + OURS, 0)
        append(BUILDING, 1)
        append(REPAIRING, 2)
    assert stages == ["compile", "repair"]
    assert opens == [], "`/` is opened once"


def test_stages_between_two_reads_are_all_reported(job: CompileJob) -> None:
    stages: list[str] = []
    with log_module.followed(job.log, len(EARLIER), stages.append, lambda: True), job.log.open("a") as stream:
        stream.write(BUILDING + REPAIRING + "::group::Copying wheels back to host...\n")
    assert stages == ["compile", "repair", "copy"]


def test_cibuildwheel_prints_the_expected_lines() -> None:
    """In a new process, because cibuildwheel's logger reads the environment on import."""
    program = "from cibuildwheel.logger import log; log.step('Building wheel...'); log.step_end_with_error('oh')"
    variables = {"PATH": os.environ["PATH"], **log_module.LOG_VARIABLES}
    done = subprocess.run([sys.executable, "-c", program], env=variables, capture_output=True, text=True, check=True)
    assert "::group::Building wheel..." in done.stdout.splitlines()
    assert log_module.last_error(done.stderr.splitlines()) == "oh"
