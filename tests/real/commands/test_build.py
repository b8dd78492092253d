"""`build` from matrix.yaml to dist/, and `store` beside it, on a small project: C extensions for a tiny fake torch."""

import contextlib
import gc
import io
import json
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from builder.commands.building.build import BuildOptions, build_text, hint_of, run_build
from builder.commands.building.preflight import RunSettings, choose_executor
from builder.commands.folders import open_store
from builder.errors import BuildfarmError, Code, Exit, MissingToolError, PreflightError, UsageError
from builder.log import console
from builder.matrix.config import Selection
from builder.matrix.fields import parse_size
from builder.matrix.load import read_plan
from builder.process import OWNER_VARIABLE
from builder.proof import Check, Verdict
from builder.proofs.inventory import shelf_of
from builder.publish.results import BuildResult
from builder.publish.runs.history import report_of
from builder.publish.runs.history import runs as history
from builder.records import Part
from builder.store import Store
from builder.wheels.job import NotPreparedError
from builder.wheels.local import LocalExecutor
from builder.wheels.toolchain.environments import Environments
from tests.conftest import PATIENCE, in_foreground, wait_until
from tests.fixtures.small_project import MODULE, SmallProject, small_project
from tests.unit.canned_gate import VERDICTS

pytestmark = pytest.mark.usefixtures("headers")


@dataclass(frozen=True)
class Run:
    """One `buildfarm build`: its results, what it printed, what it wrote, and how many requests the index got."""

    results: dict[str, BuildResult]
    table: str
    messages: str
    report: bytes
    dist: frozenset[str]
    requests: int


@dataclass(frozen=True)
class Runs:
    """Three runs in a row: with an empty store, with nothing to do, and after two sources were edited."""

    project: SmallProject
    first: Run
    warm: Run
    edited: Run

    def wheel(self, name: str) -> Path:
        """The wheel in dist after the last run."""
        (found,) = (self.project.root / "dist").glob(f"{name}-*.whl")
        return found


def one_run(project: SmallProject) -> Run:
    options = project.options()
    project.index.requested.clear()
    messages = io.StringIO()
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(console, "_file", messages)  # `capture` only captures one thread
        plan, results, _ = run_build(options)
    return Run(
        {result.build.extension: result for result in results},
        build_text(options.dist, plan, results),
        messages.getvalue(),
        (options.dist / "report.json").read_bytes(),
        frozenset(path.name for path in options.dist.glob("*.whl")),
        len(project.index.requested),
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    root = tmp_path_factory.mktemp("small project")  # a space in every path
    with pytest.MonkeyPatch.context() as monkeypatch, small_project(root, monkeypatch) as project:
        tiny = project.recipe("tiny")
        with (tiny.parent / "pyproject.toml").open("a") as stream:
            stream.write('[tool.cibuildwheel]\nbefore-all = "false"\n')
        broken = project.recipe("broken", source="int main( {\n")
        project.recipe("hollow", cuda="required")
        project.matrix("tiny", "broken", "hollow")
        first, warm = one_run(project), one_run(project)
        (tiny / "_C.c").write_text(MODULE.format(answer=43))
        (broken / "_C.c").write_text(MODULE.format(answer=1))
        yield Runs(project, first, warm, one_run(project))


def proofs(run: Run, name: str) -> dict[Check, Verdict]:
    return {proof.check: proof.verdict for proof in run.results[name].proofs}


def lines(run: Run, name: str) -> list[str]:
    """The line of the wheel of an extension, and that of its figures."""
    printed = run.table.splitlines()
    return next(printed[at : at + 2] for at, line in enumerate(printed) if line.startswith(f"{name}-"))


def test_an_extension_becomes_a_proven_wheel(runs: Runs) -> None:
    result = runs.first.results["tiny"]
    assert (result.exit, result.error, result.reused) == (Exit.OK, None, False)
    assert result.stored is not None
    assert result.stored.record.record.toolchain.get(Part.NVCC) == "13.0.88"
    assert proofs(runs.first, "tiny") == {
        Check.PAYLOAD: Verdict.PASSED,
        Check.TAGS: Verdict.PASSED,
        Check.MODULES: Verdict.PASSED,
        Check.RECORD: Verdict.PASSED,
        Check.LOADER: Verdict.PASSED,
        Check.METADATA: Verdict.PASSED,
        Check.GRAFTED: Verdict.PASSED,
        Check.CONTENTS: Verdict.PASSED,
        Check.DEVICE_CODE: Verdict.PASSED,
        Check.LINKAGE: Verdict.PASSED,
        Check.IMPORT: Verdict.PASSED,
        **VERDICTS,
    }
    (wheel,) = runs.first.dist
    assert wheel == result.stored.wheel.name
    assert "+cu130.torch2.11-" in wheel
    assert "linux_x86_64" not in wheel.replace("manylinux", "")


def test_a_run_that_compiles_says_for_how_many_architectures(runs: Runs) -> None:
    said = "Each wheel is compiled for 6 GPU architectures."
    assert said in runs.first.messages
    options, build = runs.project.options(), runs.first.results["tiny"].build
    assert hint_of(options, {build: False}).startswith(said)
    assert hint_of(options, {build: True}) == "", "nothing is compiled"
    assert hint_of(replace(options, arch=["9.0"]), {build: False}) == "", "the user chose them"


def test_the_logs_of_failed_builds_are_kept_with_their_run(runs: Runs) -> None:
    first = min(history(Store(runs.project.store)), key=lambda run: run.started)
    broken, hollow = runs.first.results["broken"], runs.first.results["hollow"]
    assert list(first.logs) == [str(broken.build), str(hollow.build)]
    assert broken.log
    kept = Path(first.logs[str(broken.build)])
    assert "_C.c:1:" in kept.read_text()
    assert "_C.c:1:" not in broken.log.read_text(), "a later run has overwritten it"
    hints = next(each["hints"] for each in first.report["builds"] if each["build"] == str(broken.build))
    assert f"the full output is in {kept}" in hints


def test_the_report_of_a_run(runs: Runs) -> None:
    warm, first = sorted(history(Store(runs.project.store)), key=lambda run: run.started)[1::-1]
    assert first.timeline
    tiny, cell = str(runs.first.results["tiny"].build), runs.first.results["tiny"].build.serves[0]
    stages = {stage.stage for stage in first.timeline.stages if stage.build == tiny}
    assert {"compile", "repair", f"import in {cell}"} <= stages
    assert all(0 <= each.start < each.end <= first.seconds + 1 for each in first.timeline.stages)
    assert set(warm.reused) == {tiny, str(runs.first.results["hollow"].build)}
    found = {build.build.partition("-")[0]: build for build in report_of(first)[0]}
    assert {name: build.result for name, build in found.items()} == {
        "broken": "failed",
        "hollow": "refused",
        "tiny": "built",
    }
    assert found["tiny"].cells[0].level == "cpu"
    end = found["broken"].log_end
    assert any(line.startswith("broken/_C.c:1:") for line in end), "the real error of gcc"
    assert {build.build: build.result for build in report_of(warm)[0]}[tiny] == "already built"


def test_a_refused_wheel_never_reaches_dist(runs: Runs) -> None:
    result = runs.first.results["hollow"]
    assert result.exit == Exit.FAILED
    assert result.error is None
    assert proofs(runs.first, "hollow")[Check.PAYLOAD] is Verdict.FAILED
    assert proofs(runs.first, "hollow")[Check.DEVICE_CODE] is Verdict.FAILED
    for run in (runs.first, runs.warm, runs.edited):
        assert not [name for name in run.dist if name.startswith("hollow")]
        assert not [line for line in run.table.splitlines() if "hollow" in line and "pip install" in line]
        assert "(refused)" in lines(run, "hollow")[0]
    assert "the source has no .cu file" in runs.first.table


def test_a_second_run_builds_nothing_and_sends_no_request(runs: Runs) -> None:
    assert runs.warm.results["tiny"].reused
    assert runs.warm.results["hollow"].reused
    assert not runs.warm.results["broken"].reused
    assert lines(runs.warm, "tiny")[1].endswith("; reused")
    assert runs.warm.results["tiny"].proofs == runs.first.results["tiny"].proofs
    assert runs.warm.results["hollow"].exit == Exit.FAILED
    assert runs.warm.report == runs.first.report
    assert runs.first.requests > 0
    runs.project.index.requested.clear()
    run_build(replace(runs.project.options(), ext=["tiny", "hollow"]))  # not `broken`, which compiles again
    assert runs.project.index.requested == []


def test_the_symbols_of_the_torch_of_a_cell_are_kept_for_verify(runs: Runs) -> None:
    """`verify` then needs no download to check the linkage with this torch."""
    (release,) = shelf_of(open_store(runs.project.options().store)).releases
    assert str(release) == "torch2.11.0-cu130-x86_64"


def test_only_an_edited_source_is_built_again(runs: Runs) -> None:
    assert not runs.edited.results["tiny"].reused
    assert runs.edited.results["hollow"].reused
    assert runs.edited.results["broken"].exit == Exit.OK
    assert {name.split("-")[0] for name in runs.edited.dist} == {"tiny", "broken"}
    digests = [run.results["tiny"].stored for run in (runs.first, runs.edited)]
    why = "compiled again, because these files changed since the last wheel: tiny/_C.c"
    assert " ".join(runs.edited.messages.split()).count(why) == 1, "broken had no wheel before"
    assert "compiled again" not in runs.first.messages + runs.warm.messages
    assert digests[0] is not None
    assert digests[1] is not None
    assert digests[0].digest != digests[1].digest
    assert runs.wheel("tiny").read_bytes() == digests[1].wheel.read_bytes() != digests[0].wheel.read_bytes()


def test_the_environment_variables_of_a_build(runs: Runs) -> None:
    with zipfile.ZipFile(runs.wheel("tiny")) as archive:
        lines = archive.read("tiny/env.txt").decode().splitlines()
    variables = dict(line.split("=", 1) for line in lines if "=" in line)
    assert variables["FORCE_CUDA"] == "1"
    assert Path(variables["CUDA_HOME"]).parts[-2:] == ("objects", "cuda"), "the launchers"
    assert variables["TORCH_CUDA_ARCH_LIST"]
    assert variables["SOURCE_DATE_EPOCH"] == "315532800"
    assert Path(variables["CC"]).name.startswith("gcc")
    assert str(runs.project.root / "cuda" / "bin") in variables["PATH"].split(os.pathsep)


WARM = """
import sys
from builder import __main__
from builder.process import handle_signals
from builder import resources
from builder.wheels import local
local.find_sccache = lambda: None
resources.ENVIRONMENT_BYTES = resources.WORK_BYTES = 1
handle_signals()
status = __main__.run_command()
print(status, *sorted(name for name in sys.modules if "." not in name), file=sys.stderr)
"""


def test_with_nothing_to_do_no_heavy_library_is_loaded(runs: Runs) -> None:
    options = runs.project.options()
    arguments = ["build", "--executor", "local", "--ext", "tiny", "--json", "--matrix", options.matrix]
    arguments += ["--store", str(options.store), "--dist", runs.project.root / "other dist"]
    argv = [sys.executable, "-c", WARM, *map(str, arguments)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    status, *modules = done.stderr.splitlines()[-1].split()
    assert status == "0", done.stderr
    assert json.loads(done.stdout)["builds"][0]["status"] == "built"
    assert "already built" in done.stderr
    assert "typer" in modules
    assert not {"docker", "requests", "jinja2", "abi3info", "abi3audit", "cibuildwheel", "auditwheel"} & set(modules)


#: Starts a compiler that waits for its source for ever.
UNENDING = """\
import os, subprocess
subprocess.Popen([os.environ["CC"], "-c", "-x", "c", "-", "-o", "x.o"], stdin=subprocess.PIPE).wait()
"""


@pytest.mark.parametrize(
    ("prefix", "number"),
    [
        pytest.param([], signal.SIGINT, id="Ctrl-C"),
        # `timeout` sends the signal to its child, and to its process group: buildfarm gets it twice.
        pytest.param(["timeout", "300"], signal.SIGTERM, id="timeout"),
        pytest.param([], signal.SIGHUP, id="closed terminal"),
    ],
)
def test_a_signal_ends_the_compiler_and_prints_what_is_kept(
    runs: Runs, prefix: list[str], number: signal.Signals
) -> None:
    name = f"unending{number.value}"
    package = runs.project.recipe(name)
    backend = package.parent / "backend.py"
    backend.write_text(UNENDING + backend.read_text())
    options = runs.project.options()
    matrix = runs.project.root / f"{name}.yaml"
    matrix.write_text(options.matrix.read_text().replace("[tiny, broken, hollow]", f"[tiny, {name}]"))
    arguments = ["build", "--executor", "local", "--matrix", matrix, "--store", options.store, "--dist", options.dist]
    process = subprocess.Popen(
        [*prefix, sys.executable, "-c", WARM, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # The disposition of a program in the foreground of a shell, however the tests were started.
        preexec_fn=in_foreground,  # noqa: PLW1509 - no thread is at work here
    )
    assert process.stderr is not None
    output = ""
    while ": compile (" not in output:  # tiny comes first, and is already built
        line = process.stderr.readline()
        assert line, output
        output += line
    wait_until(lambda: "cc1" in programs(runs.project.store), "the compiler")
    process.send_signal(number)
    out, err = process.communicate(timeout=PATIENCE)
    assert err.splitlines()[-1].split()[0] == "130", err
    assert err.count("interrupted; finished builds are kept") == 1
    assert "Traceback" not in err
    assert out == ""
    wait_until(lambda: not programs(runs.project.store), "the end of all programs")


def programs(store: Path) -> list[str]:
    """The names of the programs that builds of this store run."""
    mark = f"{OWNER_VARIABLE}={Store(store).owner('')}".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (process / "environ").read_bytes():
                found.append((process / "comm").read_text().strip())
    return found


@pytest.fixture
def options(runs: Runs) -> BuildOptions:
    return runs.project.options()


def not_started(*_: object, cached_only: bool = False, **__: object) -> None:
    assert cached_only, "something was started"
    raise NotPreparedError


def test_all_problems_are_reported_before_the_first_build(
    options: BuildOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = replace(options, store=tmp_path / "empty")
    missing: list[BuildfarmError] = [
        MissingToolError("no nvcc", Code.TOOLKIT_MISSING),
        MissingToolError("no g++", Code.TOOLKIT_MISSING),
    ]
    monkeypatch.setattr(LocalExecutor, "problems", lambda *_: list(missing))
    monkeypatch.setattr(LocalExecutor, "prepare", not_started)
    with pytest.raises(PreflightError) as caught:
        run_build(options)
    assert [str(problem) for problem in caught.value.problems] == ["no nvcc", "no g++"]
    assert caught.value.exit_code == Exit.TOOL_MISSING
    missing.pop()
    with pytest.raises(MissingToolError, match="no nvcc"):
        run_build(options)


def test_cases_that_python_cannot_parse_stop_the_run_before_the_compile(
    options: BuildOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = next(options.matrix.parent.rglob("extension.yaml"))
    cases = recipe.parent / "cases.py"
    assert not cases.exists()
    cases.write_text("CASES = [\n")
    monkeypatch.setattr(LocalExecutor, "prepare", not_started)
    try:
        with pytest.raises(UsageError, match="Python cannot parse this file: '\\[' was never closed") as caught:
            run_build(replace(options, store=tmp_path / "empty"))
        assert caught.value.where == f"{cases}:1"
    finally:
        cases.unlink()


def test_a_version_that_the_source_does_not_have_stops_the_run_before_the_compile(
    options: BuildOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = next(options.matrix.parent.rglob("extension.yaml")).parent / "src" / "setup.py"
    monkeypatch.setattr(LocalExecutor, "prepare", not_started)
    script.write_text('from setuptools import setup\nsetup(version="1.1")\n')
    try:
        with pytest.raises(UsageError, match=r"extension.yaml says 1.0 and setup.py 1.1"):
            run_build(replace(options, store=tmp_path / "empty"))
    finally:
        script.unlink()


def test_a_full_disk_is_an_error_only_if_something_is_to_be_built(
    options: BuildOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builder.resources.ENVIRONMENT_BYTES", 2**60)
    with pytest.raises(UsageError, match="GiB are free, but a build needs"):
        run_build(replace(options, store=tmp_path / "empty"))
    results = run_build(options)[1]
    assert all(result.reused for result in results)


NO_TOOLKIT = MissingToolError(
    "no CUDA 12.1 toolkit on this machine",
    Code.TOOLKIT_MISSING,
    hints=["pass `--allow-cuda-minor-mismatch`", "`--executor docker`"],
)
NO_ENGINE = MissingToolError(
    "there is no docker program", Code.ENGINE_MISSING, hints=["install Docker", "or use `--executor local`"]
)


@pytest.fixture
def choose(options: BuildOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[str, str]]:
    """Call `choose_executor` on a machine with these problems; returns the executor's name and what is printed."""

    def choose(wanted: str, here: Sequence[BuildfarmError], containers: Sequence[BuildfarmError]) -> tuple[str, str]:
        docker = "builder.wheels.cibuildwheel.executor.DockerExecutor"
        monkeypatch.setattr(LocalExecutor, "toolkit_problems", lambda *_: list(here))
        monkeypatch.setattr(f"{docker}.image_problems", lambda *_: list(containers))
        matrix, _, plan = read_plan(options.matrix, Selection())
        with console.capture() as output:
            environments = Environments(Store(tmp_path), matrix.torch_index)
            executor = choose_executor(RunSettings(matrix, wanted), plan.builds, environments)
        return executor.name, output.get()

    return choose


@pytest.mark.parametrize(
    ("wanted", "here", "containers", "chosen", "message"),
    [
        ("local", [NO_TOOLKIT], [], "local", ""),
        ("docker", [], [NO_ENGINE], "docker", ""),
        ("auto", [], [], "local", "executor: local (the CUDA toolkit is on this machine or on the package index)\n"),
        ("auto", [], [NO_ENGINE], "local", "executor: local (the CUDA toolkit is on this machine or on the"),
        ("auto", [NO_TOOLKIT], [], "docker", "executor: docker (no CUDA 12.1 toolkit on this machine)\n"),
    ],
)
def test_auto_chooses_the_executor_that_can_compile(
    wanted: str,
    here: Sequence[BuildfarmError],
    containers: Sequence[BuildfarmError],
    chosen: str,
    message: str,
    choose: Callable[..., tuple[str, str]],
) -> None:
    name, printed = choose(wanted, here, containers)
    assert name == chosen
    assert printed.startswith(message)
    assert bool(printed) == bool(message)


def test_if_neither_executor_can_compile_one_error_has_both_reasons_and_all_solutions(
    choose: Callable[..., tuple[str, str]],
) -> None:
    with pytest.raises(MissingToolError) as caught:
        choose("auto", [NO_TOOLKIT], [NO_ENGINE])
    assert caught.value.sentence == (
        "neither this machine nor a container can compile these builds. This machine: no CUDA 12.1 toolkit on this"
        " machine. Container: there is no docker program"
    )
    first, second, image, elsewhere = caught.value.hints
    assert (first, second) == ("install Docker", "pass `--allow-cuda-minor-mismatch`")
    assert "`images`" in image
    assert "--executor docker" in elsewhere


@pytest.mark.parametrize("used", [True, False])
@pytest.mark.parametrize("wanted", ["local", "docker"])
def test_an_option_turns_the_compiler_cache_off(used: bool, wanted: str, options: BuildOptions, tmp_path: Path) -> None:
    matrix, _, plan = read_plan(options.matrix, Selection())
    environments = Environments(Store(tmp_path), matrix.torch_index)
    executor = choose_executor(RunSettings(matrix, wanted, compiler_cache=used), plan.builds, environments)
    assert executor.compiler_cache is used  # type: ignore[attr-defined]
    assert executor.shares_objects is used, "without the cache no build waits for objects"


#: Deletes what was not used for some days, again and again, and prints what was deleted, and whether it had to wait.
PRUNE = """
import sys, time
from pathlib import Path
from builder.commands.store import prune_store as prune
from builder.store import Store
while True:
    time.sleep(0.02)  # leaves the processors to the builds
    deleted, in_use = prune(Store(Path(sys.argv[1])), float(sys.argv[2]))
    for item in deleted:
        print("deleted", item.target.partition("/")[0], flush=True)
    if in_use:
        print("in use", flush=True)
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallProject]:
    with small_project(tmp_path / "project", monkeypatch) as found:
        found.recipe("tiny")
        found.recipe("other")
        found.matrix("tiny", "other")
        yield found


@contextmanager
def pruning(store: Path, output: Path, days: float = 0) -> Iterator[None]:
    """Run the prune loop in a process of its own while the body runs."""
    with output.open("w") as stream:
        process = subprocess.Popen([sys.executable, "-c", PRUNE, str(store), str(days)], stdout=stream, stderr=stream)
        try:
            yield
            assert process.poll() is None, output.read_text()
        finally:
            process.kill()
            process.wait()


def test_prune_disturbs_no_running_build(project: SmallProject, tmp_path: Path) -> None:
    options, output = project.options(), tmp_path / "pruned"
    source = project.root / "tiny" / "src" / "tiny" / "_C.c"
    wanted = {"deleted builds", "deleted envs", "in use"}

    def seen() -> set[str]:
        return wanted & set(output.read_text().splitlines())

    with pruning(Store(project.store).root, output):
        for answer in range(30):  # until the other process has looked at each kind while it was in use
            source.write_text(MODULE.format(answer=answer))
            results = run_build(options)[1]
            assert [result.exit for result in results] == [Exit.OK] * 2, [result.error for result in results]
            assert len(list((project.root / "dist").glob("*.whl"))) == 2
            if answer >= 2 and "in use" in seen():
                break
        gc.collect()
        builds = Store(project.store).root / "builds"
        wait_until(lambda: not list(builds.iterdir()), "all builds deleted")
        wait_until(lambda: seen() == wanted, lambda: f"all of {wanted}: {seen()}")


@pytest.mark.parametrize(
    ("text", "size"), [("0", 0), ("500MiB", 500 * 2**20), ("1.5GB", 1_500_000_000), ("20G", 20 * 2**30), ("2 kb", 2000)]
)
def test_a_size(text: str, size: int) -> None:
    assert parse_size(text) == size
