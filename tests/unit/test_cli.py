"""The command line: documented exit codes, data on stdout, messages on stderr, and the files of `render`."""

import errno
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from builder import __version__
from builder.commands.building import build
from builder.commands.building.build import BuildOptions
from builder.errors import BuildError, BuildfarmError, Code, Exit, MissingToolError, PreflightError, UsageError
from builder.images.registry import read_lock
from builder.log import print_line
from builder.matrix.config import TORCH_INDEX
from builder.matrix.plan import Plan
from builder.publish.results import BuildResult
from tests.conftest import PATIENCE, ROOT
from tests.unit.conftest import Call
from tests.unit.images.fake_engine import FakeEngine
from tests.unit.wheels.make_record import BUILD

FAILED = BuildResult(
    BUILD, None, BuildError("a.cu:3: error", stage="compile", hints=["look"]), reused=False, seconds=1.0
)


@pytest.fixture
def matrix(tmp_path: Path) -> Path:
    (tmp_path / "ops").mkdir()
    (tmp_path / "ops" / "extension.yaml").write_text(
        "name: ops\nversion: 1.0\nsource: {path: .}\nabi: cpython\nimports: [ops]\n"
    )
    path = tmp_path / "matrix.yaml"
    path.write_text("torch: [2.11]\ncuda: [13.0]\npython: [3.12]\nextensions: [ops]\n")
    return path


def replace_run_build(
    monkeypatch: pytest.MonkeyPatch, outcome: BaseException | list[BuildResult]
) -> list[BuildOptions]:
    """Replace `run_build` by a function that returns or raises `outcome`; the list gets the options of each call."""
    calls: list[BuildOptions] = []

    def run_build(options: BuildOptions) -> tuple[Plan, list[BuildResult], str]:
        calls.append(options)
        print_line("building")
        if isinstance(outcome, BaseException):
            raise outcome
        return Plan((BUILD,), ()), outcome, TORCH_INDEX

    monkeypatch.setattr(build, "run_build", run_build)
    return calls


def test_version(call: Call) -> None:
    assert call("--version") == (0, f"buildfarm {__version__}\n", "")


@pytest.mark.parametrize("arguments", [("--help",), ("plan", "-h"), ("build", "--help")], ids=" ".join)
def test_help(arguments: tuple[str, ...], call: Call) -> None:
    code, out, err = call(*arguments)
    assert (code, err) == (0, "")
    assert "buildfarm" in out


def test_native_means_the_gpus_of_this_machine(
    call: Call, matrix: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\n[ $1 = --query-gpu=index,compute_cap ] && printf '0, 9.0\\n1, 8.6\\n2, 9.0\\n'\n")
    program.chmod(0o755)
    assert "  archs 8.6 9.0\n" in call("plan", "--matrix", matrix, "--arch", "native")[1]
    assert "  archs 8.0 8.6 9.0\n" in call("plan", "--matrix", matrix, "--arch", "8.0,native")[1]


def test_a_deleted_current_folder_is_named(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    code, _, err = call("init")
    assert code == Exit.FAILED
    assert err == "error[path-not-usable]: the current folder: No such file or directory\n"


@pytest.mark.parametrize(
    ("outcome", "code", "message"),
    [
        (
            BuildfarmError("it broke", Code.DISK_FULL, hints=["repair it"]),
            1,
            "error[disk-full]: it broke\n  hint: repair it",
        ),
        (BuildError("it broke", stage="fetch"), 1, "error[fetch-failed]: it broke"),
        (
            PreflightError([UsageError("one", Code.VALUE_INVALID), MissingToolError("two", Code.TOOLKIT_MISSING)]),
            4,
            "error[value-invalid]: one\nerror[toolkit-missing]: two\n2 problems",
        ),
        (
            PreflightError([MissingToolError("one", Code.TOOLKIT_MISSING), UsageError("two", Code.VALUE_INVALID)]),
            4,
            "error[toolkit-missing]: one\nerror[value-invalid]: two\n2 problems",
        ),
        (KeyboardInterrupt(), 130, "interrupted; finished builds are kept"),
        (
            OSError(errno.ENOSPC, "No space left on device", "/store/x"),
            1,
            "error[disk-full]: the disk is full (/store/x)",
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_each_error_has_its_exit_code_and_its_message(
    outcome: BaseException, code: int, message: str, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[bool] = []
    monkeypatch.setattr("builder.__main__.kill_all", lambda: killed.append(True))
    replace_run_build(monkeypatch, outcome)
    got, out, err = call("build")
    assert (got, out) == (code, "")
    assert err.startswith(f"building\n{message}")
    assert bool(killed) == (code == Exit.INTERRUPTED)


def test_a_bug_of_buildfarm_keeps_its_traceback(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_run_build(monkeypatch, RuntimeError("a bug"))
    with pytest.raises(RuntimeError, match="a bug"):
        call("build")


@pytest.mark.parametrize(
    ("results", "code"),
    [
        pytest.param([replace(FAILED, error=None)], 0, id="no error"),
        pytest.param([replace(FAILED, error=None), FAILED], 1, id="one failed"),
        pytest.param(
            [FAILED, replace(FAILED, error=MissingToolError("no torch", Code.TOOLKIT_MISSING))],
            4,
            id="the highest code counts",
        ),
    ],
)
def test_the_exit_code_is_that_of_the_worst_build(
    results: list[BuildResult], code: int, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_run_build(monkeypatch, results)
    assert call("build")[0] == code


def test_with_json_stdout_has_only_data(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_run_build(monkeypatch, [FAILED])
    code, out, err = call("build", "--json")
    assert code == 1
    (entry,) = json.loads(out)["builds"]
    assert (entry["status"], entry["code"], entry["error"], entry["hints"]) == (
        *("failed", "compile-failed", "a.cu:3: error"),
        ["look"],
    )
    assert err == f"building\nerror[compile-failed]: {BUILD}: a.cu:3: error\n  hint: look\n"


@pytest.mark.parametrize("words", [["plan", "--json"], ["verify", "absent.whl", "--json"]])
def test_a_closed_stdout_is_an_error(words: list[str], matrix: Path) -> None:
    """`buildfarm plan --json >&-`: it ended with 0, and nobody got the plan."""
    argv = ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-m", "builder", *words]
    done = subprocess.run(argv, cwd=matrix.parent, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode not in (0, None)
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("error[")
    assert ("error[path-not-usable]: stdout: it is closed" in done.stderr) is (words[0] == "plan")


def test_a_closed_pipe_is_no_error() -> None:
    reader = subprocess.Popen(
        [sys.executable, "-m", "builder", "plan", "--explain"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert reader.stdout is not None
    reader.stdout.close()
    assert reader.stderr is not None
    with reader.stderr:
        assert reader.stderr.read() == ""
    assert reader.wait(PATIENCE) == 0


def test_a_new_matrix_keeps_the_architectures_of_the_first_build(
    tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "source" / "ops").mkdir(parents=True)
    setup = 'setup(name="ops", version="1.0", ext_modules=[CUDAExtension("ops._C", ["ops.cu"])])\n'
    for name, text in {"setup.py": setup, "ops.cu": "", "ops/__init__.py": ""}.items():
        (tmp_path / "source" / name).write_text(text)
    monkeypatch.setattr(build, "run_build", lambda _: (Plan((BUILD,), ()), [], TORCH_INDEX))
    cell = ("--torch", "2.11", "--cuda", "13.0", "--python", "3.12")
    code, _, err = call("build", "./source", *cell, "--arch", "9.0", "--store", tmp_path / "store")
    assert code == 0, err
    assert "archs: [9.0]" in (tmp_path / "matrix.yaml").read_text()
    code, out, err = call("plan")
    assert (code, out.splitlines()[2].rpartition("  ")[2]) == (0, "archs 9.0"), err


MATRIX = """\
torch: [2.2]
cuda: [12.1]
python: [3.11, 3.12]
extensions: [one]
"""
RECIPE = "name: one\nversion: 1.0\nsource: {path: .}\nabi: cpython\nimports: [one]\n"


@pytest.fixture
def project(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A folder with a small matrix, and no container engine."""
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "extension.yaml").write_text(RECIPE)
    (tmp_path / "matrix.yaml").write_text(MATRIX)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:9")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)


DIGEST, PYTHONS = "sha256:" + "ef" * 32, "r.example/manylinux_2_28:1"


@pytest.mark.usefixtures("project")
def test_lock_pins_the_digests_that_the_registry_reports(call: Call, tmp_path: Path, fake: FakeEngine) -> None:
    base = "r.example/cuda:12.1.1-devel-rockylinux8"
    fake.digests = {base: DIGEST, PYTHONS: "sha256:" + "ab" * 32}
    (tmp_path / "matrix.yaml").write_text(MATRIX + f'images: [{{cells: "*", image: "{base}", pythons: "{PYTHONS}"}}]\n')
    code, out, err = call("render", "--lock")
    assert (code, err) == (0, "")
    fake.asked.clear()
    assert call("render") == (0, out, "")  # the lock is used, and no registry is asked
    assert fake.asked == []
    assert read_lock(tmp_path / "buildfarm.lock") == fake.digests
    assert "without a digest" not in out
    assert "(pinned)" in out
    text = next((tmp_path / "build" / "dockerfiles").glob("build-*")).read_text()
    assert f"FROM {base}@{DIGEST} AS build" in text


@pytest.mark.usefixtures("project")
def test_an_image_without_a_digest_is_an_error_and_the_others_are_pinned(
    call: Call, tmp_path: Path, fake: FakeEngine
) -> None:
    missing = "r.example/missing:1"
    fake.digests = {PYTHONS: DIGEST}
    images = f'images: [{{cells: "*", image: "{missing}", pythons: "{PYTHONS}"}}]\n'
    (tmp_path / "matrix.yaml").write_text(MATRIX + images)
    code, out, err = call("render", "--lock")
    assert code == 4
    assert f"error[image-not-found]: {missing}: missing:1 cannot be pulled from r.example: " in err
    assert f"base images without a digest (1):\n  {missing}\n" in out, "no advice to run the command that has just run"
    assert list(read_lock(tmp_path / "buildfarm.lock")) == [PYTHONS]


@pytest.mark.usefixtures("project")
def test_a_base_image_that_the_matrix_pins_is_not_looked_up(call: Call, tmp_path: Path, fake: FakeEngine) -> None:
    base = f"r.example/cuda@{DIGEST}"
    fake.digests = {PYTHONS: DIGEST}
    (tmp_path / "matrix.yaml").write_text(MATRIX + f'images: [{{cells: "*", image: "{base}", pythons: "{PYTHONS}"}}]\n')
    code, out, err = call("render", "--lock")
    assert fake.asked == [PYTHONS]
    assert (code, err) == (0, "")
    assert "r.example/cuda (pinned)" in out
    assert "without a digest" not in out


@pytest.mark.usefixtures("project")
def test_the_digests_come_from_the_mirror_and_the_files_name_the_original_images(
    call: Call, tmp_path: Path, fake: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = "nvidia/cuda:12.1.1-devel-rockylinux8"
    images = (f"hub/{cuda}", "hub/nvidia/cuda:12.1.1-base-ubuntu22.04", "pypa/manylinux_2_28_x86_64:2026.10.26-1")
    fake.digests = {f"mirror.example/{name}": DIGEST for name in images}
    monkeypatch.setenv("BUILDFARM_REGISTRIES", "docker.io=mirror.example/hub quay.io=mirror.example")
    code, out, err = call("render", "--lock")
    assert (code, err) == (0, "")
    assert read_lock(tmp_path / "buildfarm.lock")[cuda] == DIGEST
    assert f"{cuda} (pinned)" in out
