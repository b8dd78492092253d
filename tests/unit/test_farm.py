"""The whole story in small: recipes in C, compiled by gcc for a torch of a few lines, proven and handed over."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from builder.errors import BuildError, Exit, FarmError, MissingToolError, PreflightError, UsageError
from builder.farm import Options, choose_executor, open_store, run_build
from builder.log import console
from builder.matrix.config import Select
from builder.matrix.declaration import read_plan
from builder.proof import Check, Verdict
from builder.publish.report import build_text
from builder.result import Result
from builder.store import Store
from builder.wheels.environment import Environments
from builder.wheels.local import LocalExecutor
from builder.wheels.pythons import find_uv
from tests.unit.canned_gate import VERDICTS
from tests.unit.small_farm import MODULE, SmallFarm, small_farm

pytestmark = pytest.mark.usefixtures("headers")


@dataclass(frozen=True)
class Run:
    """One run of the farm, and what it left."""

    results: dict[str, Result]
    table: str
    talk: str
    report: bytes
    dist: frozenset[str]
    asked: int


@dataclass(frozen=True)
class Story:
    """Runs one after the other: from nothing, with nothing to do, after two sources were edited."""

    farm: SmallFarm
    first: Run
    warm: Run
    edited: Run

    def wheel(self, name: str) -> Path:
        """The wheel in dist, after all runs."""
        (found,) = (self.farm.root / "dist").glob(f"{name}-*.whl")
        return found


def one_run(farm: SmallFarm) -> Run:
    options = farm.options()
    farm.index.asked.clear()
    talk = io.StringIO()
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(console, "_file", talk)  # `capture` hears one thread only
        plan, results = run_build(options)
    return Run(
        {result.build.extension: result for result in results},
        build_text(options.dist, plan, results),
        talk.getvalue(),
        (options.dist / "report.json").read_bytes(),
        frozenset(path.name for path in options.dist.glob("*.whl")),
        len(farm.index.asked),
    )


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    root = tmp_path_factory.mktemp("small farm")  # a space in every path
    with pytest.MonkeyPatch.context() as monkeypatch, small_farm(root, monkeypatch) as farm:
        tiny = farm.recipe("tiny")
        broken = farm.recipe("broken", source="int main( {\n")
        farm.recipe("hollow", cuda="required")
        farm.matrix("tiny", "broken", "hollow")
        first, warm = one_run(farm), one_run(farm)
        (tiny / "_C.c").write_text(MODULE.format(answer=43))
        (broken / "_C.c").write_text(MODULE.format(answer=1))
        yield Story(farm, first, warm, one_run(farm))


def proofs(run: Run, name: str) -> dict[Check, Verdict]:
    return {proof.check: proof.verdict for proof in run.results[name].proofs}


def row(run: Run, name: str) -> list[str]:
    (line,) = (line for line in run.table.splitlines() if line.startswith(f"{name}-"))
    return [cell.strip() for cell in line.split("  ") if cell.strip()]


def test_a_declaration_becomes_a_proven_wheel(story: Story) -> None:
    result = story.first.results["tiny"]
    assert (result.exit, result.error, result.reused) == (Exit.OK, None, False)
    assert result.stored is not None
    assert result.toolchain is not None
    assert result.toolchain.part("nvcc") == "13.0.88"
    assert proofs(story.first, "tiny") == {
        Check.PAYLOAD: Verdict.PASSED,
        Check.TAGS: Verdict.PASSED,
        Check.METADATA: Verdict.PASSED,
        Check.GRAFTED: Verdict.PASSED,
        Check.DEVICE_CODE: Verdict.PASSED,
        Check.LINKAGE: Verdict.PASSED,
        Check.IMPORT: Verdict.PASSED,
        **VERDICTS,
    }
    (wheel,) = story.first.dist
    assert wheel == result.stored.wheel.name
    assert "+cu130.torch211-" in wheel
    assert "linux_x86_64" not in wheel.replace("manylinux", "")


def test_what_was_not_run_is_shown_as_not_run(story: Story) -> None:
    _, _, cells, passed, failed, not_run, gpu, _ = row(story.first, "tiny")
    assert (cells, passed, failed, not_run, gpu) == ("1", "21", "0", "5", "not run")
    assert "GPU: not run in torch2.11.0-cu130" in story.first.table


def test_a_failed_compile_is_one_result_and_the_others_go_on(story: Story) -> None:
    result = story.first.results["broken"]
    assert result.exit == Exit.FAILED
    assert isinstance(result.error, BuildError)
    assert result.error.stage == "compile"
    assert "_C.c:1:" in result.error.sentence
    assert "error: " in result.error.sentence
    assert result.error.log is not None
    assert any(str(result.error.log) in hint for hint in result.error.hints)
    assert f"{result.build}: failed: {result.error}" in story.first.talk
    assert row(story.first, "broken")[1] == "-"


def test_a_refused_wheel_never_reaches_dist(story: Story) -> None:
    result = story.first.results["hollow"]
    assert result.exit == Exit.FAILED
    assert result.error is None
    assert proofs(story.first, "hollow")[Check.PAYLOAD] is Verdict.FAILED
    assert proofs(story.first, "hollow")[Check.DEVICE_CODE] is Verdict.FAILED
    for run in (story.first, story.warm, story.edited):
        assert not [name for name in run.dist if name.startswith("hollow")]
        assert "hollow" not in run.table.partition("install, in")[2]
        assert "(refused)" in row(run, "hollow")[0]
    assert "CUDA sources were left out" in story.first.table
    pages = (story.farm.root / "dist" / "simple").rglob("*.html")
    assert not [page for page in pages if "hollow" in page.read_text()]


def test_a_second_run_makes_nothing_and_asks_nobody(story: Story) -> None:
    assert story.warm.results["tiny"].reused
    assert story.warm.results["hollow"].reused
    assert not story.warm.results["broken"].reused
    assert row(story.warm, "tiny")[-1] == "kept"
    assert story.warm.results["tiny"].proofs == story.first.results["tiny"].proofs
    assert story.warm.results["hollow"].exit == Exit.FAILED
    assert story.warm.report == story.first.report
    assert story.first.asked > 0
    assert story.warm.asked == 0


def test_an_edited_source_is_built_again_and_the_others_are_not(story: Story) -> None:
    assert not story.edited.results["tiny"].reused
    assert story.edited.results["hollow"].reused
    assert story.edited.results["broken"].exit == Exit.OK
    assert {name.split("-")[0] for name in story.edited.dist} == {"tiny", "broken"}
    digests = [run.results["tiny"].stored for run in (story.first, story.edited)]
    assert digests[0] is not None
    assert digests[1] is not None
    assert digests[0].digest != digests[1].digest
    assert story.wheel("tiny").read_bytes() == digests[1].wheel.read_bytes() != digests[0].wheel.read_bytes()


def test_report_json_tells_what_the_table_tells(story: Story) -> None:
    report = json.loads(story.first.report)
    entries = {entry["build"].split("-")[0]: entry for entry in report["builds"]}
    assert {name: entry["status"] for name, entry in entries.items()} == {
        "tiny": "built",
        "broken": "failed",
        "hollow": "failed",
    }
    assert "error: " in entries["broken"]["error"]
    assert "wheel" not in entries["broken"]
    gpu = [proof for proof in entries["tiny"]["proofs"] if proof["check"] == "gpu-values"]
    assert [proof["verdict"] for proof in gpu] == ["not run"]


def test_the_build_got_the_environment_the_farm_promises(story: Story) -> None:
    with zipfile.ZipFile(story.wheel("tiny")) as archive:
        lines = archive.read("tiny/env.txt").decode().splitlines()
    told = dict(line.split("=", 1) for line in lines if "=" in line)
    assert told["FORCE_CUDA"] == "1"
    assert told["CUDA_HOME"] == str(story.farm.root / "cuda")
    assert told["TORCH_CUDA_ARCH_LIST"]
    assert told["SOURCE_DATE_EPOCH"] == "315532800"
    assert Path(told["CC"]).name.startswith("gcc")
    assert str(story.farm.root / "cuda" / "bin") in told["PATH"].split(os.pathsep)


def test_the_wheel_installs_from_the_index_that_was_made(story: Story, tmp_path: Path) -> None:
    simple = (story.farm.root / "dist" / "simple").as_uri()
    argv = [str(find_uv()), "pip", "install", "--python", sys.executable, "--target", str(tmp_path), "--no-deps"]
    done = subprocess.run([*argv, "--default-index", simple, "tiny"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answer = subprocess.run(
        [sys.executable, "-c", "import tiny; print(tiny.answer())"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.stdout == "43\n", answer.stderr


WARM = """
import sys
from builder import __main__
from builder.wheels import local, resources
local.find_cache = lambda: None
resources.ENVIRONMENT_BYTES = resources.WORK_BYTES = 0
status = __main__._run()
print(status, *sorted(name for name in sys.modules if "." not in name), file=sys.stderr)
"""


def test_with_nothing_to_do_no_heavy_library_is_loaded(story: Story) -> None:
    options = story.farm.options()
    words = ["build", "--executor", "local", "--ext", "tiny", "--json", "--matrix", options.matrix]
    words += ["--store", str(options.store), "--dist", story.farm.root / "other dist"]
    argv = [sys.executable, "-c", WARM, *map(str, words)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    status, *modules = done.stderr.splitlines()[-1].split()
    assert status == "0", done.stderr
    assert json.loads(done.stdout)["builds"][0]["status"] == "built"
    assert "already built" in done.stderr
    assert "typer" in modules
    assert not {"docker", "requests", "jinja2", "abi3info", "abi3audit", "cibuildwheel", "auditwheel"} & set(modules)


def test_ctrl_c_ends_the_compiler_and_says_what_is_kept(story: Story) -> None:
    package = story.farm.recipe("slow")
    backend = package.parent / "backend.py"
    backend.write_text("import time\ntime.sleep(600)\n" + backend.read_text())
    options = story.farm.options()
    matrix = story.farm.root / "slow.yaml"
    matrix.write_text(options.matrix.read_text().replace("[tiny, broken, hollow]", "[slow]"))
    words = ["build", "--executor", "local", "--matrix", matrix, "--store", options.store, "--dist", options.dist]
    farm = subprocess.Popen(
        [sys.executable, "-c", WARM, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # As a shell in the foreground leaves it, whatever started the tests.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - no thread is at work here
    )
    assert farm.stderr is not None
    said = ""
    while ": compile (" not in said:
        line = farm.stderr.readline()
        assert line, said
        said += line
    time.sleep(0.3)  # until the compiler is there to be ended
    farm.send_signal(signal.SIGINT)
    out, err = farm.communicate(timeout=20)
    assert err.splitlines()[-1].split()[0] == "130", err
    assert "interrupted; what was finished is kept" in err
    assert "Traceback" not in err
    assert out == ""
    assert compiling(story.farm.root) == []


def compiling(folder: Path) -> list[str]:
    """Processes that build something below a folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if b"--no-build-isolation" in (words := (process / "cmdline").read_bytes()) and bytes(folder) in words:
                found.append(process.name)
    return found


@pytest.fixture
def options(story: Story) -> Options:
    return story.farm.options()


def test_all_that_is_missing_is_said_before_anything_starts(
    options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = replace(options, store=tmp_path / "empty")
    missing: list[FarmError] = [MissingToolError("no nvcc"), MissingToolError("no g++")]
    monkeypatch.setattr(LocalExecutor, "problems", lambda *_: list(missing))
    monkeypatch.setattr(LocalExecutor, "toolchain", lambda *_: pytest.fail("something was started"))
    with pytest.raises(PreflightError) as caught:
        run_build(options)
    assert [str(problem) for problem in caught.value.problems] == ["no nvcc", "no g++"]
    assert caught.value.exit_code == Exit.TOOL_MISSING
    missing.pop()
    with pytest.raises(MissingToolError, match="no nvcc"):
        run_build(options)


def test_a_full_disk_is_said_before_anything_starts_and_only_where_something_would(
    options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builder.wheels.resources.ENVIRONMENT_BYTES", 2**60)
    with pytest.raises(UsageError, match="GiB free where a build needs"):
        run_build(replace(options, store=tmp_path / "empty"))
    _, results = run_build(options)
    assert all(result.reused for result in results)


def test_a_store_that_cannot_be_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="the store cannot be used: Not a directory") as caught:
        open_store(tmp_path / "file" / "store")
    assert "--store" in caught.value.hints[0]


@pytest.mark.parametrize(
    ("asked", "absent", "problems", "taken", "said"),
    [
        pytest.param("local", "", [], "local", "", id="local"),
        pytest.param("auto", "no engine", [], "local", "executor: local (no engine)", id="auto without an engine"),
        pytest.param("auto", "", [UsageError("no g++")], "local", "executor: local (no g++)", id="auto, unfit image"),
        pytest.param("auto", "", [], "docker", "executor: docker", id="auto with docker"),
        pytest.param("docker", "no engine", [UsageError("no g++")], "docker", "", id="docker whatever is there"),
    ],
)
def test_auto_takes_what_is_there_and_says_why(
    asked: str,
    absent: str,
    problems: Sequence[FarmError],
    taken: str,
    said: str,
    options: Options,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("builder.farm.why_not_here", lambda _: absent)
    monkeypatch.setattr("builder.wheels.docker.DockerExecutor.problems", lambda *_: list(problems))
    matrix, recipes, plan = read_plan(options.matrix, Select())
    store = Store(tmp_path)
    with console.capture() as talk:
        chosen = choose_executor(
            replace(options, executor=asked), matrix, plan, recipes, store, Environments(store, matrix.torch_index)
        )
    assert chosen.name == taken
    assert talk.get().startswith(said)
    assert bool(talk.get()) == bool(said)
