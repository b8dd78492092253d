"""Progress: live lines, intervals, and the files that were compiled."""

import io
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

from builder import log
from builder.log import Verbosity
from builder.progress import display
from builder.progress.display import HEARTBEAT_SECONDS, FileCount, Progress, Timeline, clock
from tests.conftest import PATIENCE, wait_until
from tests.unit.fake_clock import FakeClock

COMPILE = "[1/2] g++ -c a.cpp -o a.o\n"


def verbosity(monkeypatch: pytest.MonkeyPatch, chosen: Verbosity) -> None:
    """Set the verbosity of this test."""
    for module in (log, display):
        monkeypatch.setattr(module, "verbosity", chosen)


def lines_with(text: str, output: io.StringIO) -> list[str]:
    """Wait until the text was printed, and return all lines."""
    wait_until(lambda: text in output.getvalue(), lambda: f"{text!r} in {output.getvalue()!r}")
    return output.getvalue().splitlines()


def test_without_a_terminal_each_stage_is_a_line(output: io.StringIO, tmp_path: Path) -> None:
    clock = FakeClock()
    progress = Progress(clock)
    with progress.shown():
        progress.start("one[x]", tmp_path / "absent.log")
        clock.step(2)
        progress.stage("one[x]", "compile")
        clock.step(7)
        progress.finish("one[x]", "built")
    assert output.getvalue() == "one[x]: compile (0:02)\none[x]: built in 0:09\n"


def test_a_stage_says_how_long_it_took_in_the_last_run(output: io.StringIO) -> None:
    last = {("one", "compile"): 125.0, ("one", "repair"): 2.0, ("two", "compile"): 90.0}
    progress = Progress(FakeClock(), lambda: last)
    with progress.shown():
        progress.start("one")
        for stage in ("compile", "repair"):
            progress.stage("one", stage)
        progress.finish("one", "")
    assert output.getvalue().splitlines() == [
        "one: compile (0:00; this step took 2:05 last time)",
        "one: repair (0:00)",
    ]


def test_waiting_for_another_process_is_no_work_and_shows_none_of_its_output(
    output: io.StringIO, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verbosity(monkeypatch, Verbosity(verbose=True))
    path, clock = tmp_path / "build.log", FakeClock()
    progress = Progress(clock)
    progress.start("one", path)
    progress.stage("one", "prepare")
    clock.step(2)
    progress.stage("one", "waiting for process 7 in /b, which makes the same wheel")
    path.write_text(COMPILE)
    clock.step(396)
    progress.stage("one", "import")
    path.write_text(f"{COMPILE}mine\n")
    clock.step(5)
    assert progress.finish("one", "built") == 7.0
    assert output.getvalue().splitlines() == [
        "one: prepare (0:00)",
        "one: waiting for process 7 in /b, which makes the same wheel (0:02)",
        "one: import (6:38)",
        "one | mine",
        "one: built in 0:07, after 6:36 of waiting",
    ]


def test_a_long_stage_is_printed_again_with_its_files(output: io.StringIO, tmp_path: Path) -> None:
    path, clock = tmp_path / "build.log", FakeClock()
    progress = Progress(clock)
    with progress.shown():
        progress.start("one", path)
        progress.stage("one", "compile")
        progress.start("two")
        progress.stage("two", "fetch")
        progress.finish("two", "built")
        clock.step(HEARTBEAT_SECONDS - 1)
        path.write_text(f"creating /var/tmp/x/y\n{COMPILE}")
        wait_until(lambda: progress.states()["one"] == "compile 1 of 2: a.cpp", "the log was read")
        lines = ["one: compile (0:00)", "two: fetch (0:00)", "two: built in 0:00"]
        assert output.getvalue().splitlines() == lines, "no line of a stage is old"
        clock.step(1)
        assert lines_with("1 of 2", output) == [*lines, "one: compile 1 of 2: a.cpp (0:30)"]
        clock.step(HEARTBEAT_SECONDS)
        assert lines_with("(1:00)", output)[4:] == ["one: compile 1 of 2: a.cpp (1:00)"]


def test_a_running_build_shows_the_calls_of_the_launcher(output: io.StringIO, tmp_path: Path) -> None:
    clock, calls = FakeClock(), tmp_path / "calls"
    progress = Progress(clock)
    with progress.shown():
        progress.start("one", tmp_path / "log")
        progress.read_calls("one", calls)
        progress.stage("one", "compile")
        calls.write_text("csrc/a.cu\n")
        wait_until(lambda: progress.states()["one"] == "compile file 1: a.cu", "the calls were read")
        clock.step(75)
        progress.stage("one", "repair")
    assert output.getvalue().splitlines()[-1] == "one: repair (1:15)"


def test_a_clock() -> None:
    assert (clock(3.9), clock(130), clock(3723)) == ("0:03", "2:10", "1:02:03")


def test_quiet_prints_nothing(output: io.StringIO, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verbosity(monkeypatch, Verbosity(quiet=True))
    progress = Progress()
    with progress.shown():
        progress.start("one", tmp_path / "log")
        progress.stage("one", "compile")
        (tmp_path / "log").write_text(COMPILE)
        progress.finish("one", "built")
    assert output.getvalue() == ""


def test_verbose_prints_the_output_while_the_build_runs(
    output: io.StringIO, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verbosity(monkeypatch, Verbosity(verbose=True))
    path = tmp_path / "log"
    path.write_text("of an earlier run\n")
    progress = Progress()
    with progress.shown():
        progress.start("one", path)
        path.write_text("new\n")  # shorter: the log was replaced
        assert lines_with("new", output) == ["one | new"]
        with path.open("a") as stream:
            stream.write("[x] ::error::no command\n")
        assert lines_with("[x]", output)[-1] == "one | [x] ::error::no command"


def test_parts_of_a_build_have_lines_and_logs_of_their_own(
    output: io.StringIO, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verbosity(monkeypatch, Verbosity(verbose=True))
    log = tmp_path / "one.log"
    log.write_text("compiled\n")
    progress = Progress(FakeClock())
    progress.start("one", log)
    with progress.part("one", "a") as (first, stage), progress.part("one", "b") as (second, _):
        stage("import in a")
        for path, text in ((first, "a1"), (second, "b1"), (first, "a2")):
            with path.open("a") as stream:
                stream.write(f"{text}\n")
    progress.finish("one", "built")
    assert output.getvalue().splitlines() == [
        "one in a: import (0:00)",
        "one in b | b1",
        "one in a | a1",
        "one in a | a2",
        "one: built in 0:00",
    ]
    assert log.read_text() == "compiled\nb1\na1\na2\n"
    assert [*tmp_path.iterdir()] == [log]


def shown(progress: Progress, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the live table as a terminal shows it."""
    stream = io.StringIO()
    with monkeypatch.context() as context:
        console = Console(file=stream, width=120, emoji=False, color_system=None)
        context.setattr(display, "console", console)
        console.print(progress)
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def test_a_terminal_shows_the_running_builds(
    tmp_path: Path, output: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, clock = tmp_path / "build.log", FakeClock()
    progress = Progress(clock)
    progress.start("one", path)
    progress.start("two")
    assert shown(progress, monkeypatch) == ["one  waiting (0:00)", "two  waiting (0:00)"]
    path.write_text(COMPILE)
    clock.step(65)
    with progress.shown():
        wait_until(lambda: progress.states()["one"] == "waiting 1 of 2: a.cpp", "the log was read")
    assert shown(progress, monkeypatch)[0] == "one  waiting 1 of 2: a.cpp (1:05)"
    progress.finish("one", "failed: no [nvcc]")
    assert shown(progress, monkeypatch) == ["two  waiting (1:05)"]
    assert output.getvalue() == "one: failed: no [nvcc] in 1:05\n"


def test_a_stage_keeps_its_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(display, "SHORTEST_STAGE", 0)
    progress = Progress()
    progress.stage("one", "compile", "w1")
    progress.stage("one", "copy")
    progress.finish("one", "")
    stages = progress.timeline().stages
    assert [(stage.stage, stage.machine) for stage in stages] == [("waiting", ""), ("compile", "w1"), ("copy", "")]
    assert (Timeline(stages).machines, Timeline(stages[2:]).machines) == (("w1",), ())


def test_a_build_that_ends_does_not_wait_for_the_live_lines(
    output: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    """rich draws the live lines in its own thread, and in the thread that prints."""
    monkeypatch.setattr(log.console, "_force_terminal", True)
    monkeypatch.setattr(log.console, "is_interactive", True)
    progress = Progress()

    def builds() -> None:
        for number in range(40):
            progress.start(f"build{number}")
            progress.stage(f"build{number}", "compile")
            time.sleep(0.01)
            progress.finish(f"build{number}", "built")

    worker = threading.Thread(target=builds, daemon=True)
    with progress.shown():
        worker.start()
        worker.join(PATIENCE)
        assert not worker.is_alive()
    assert "build39: built" in output.getvalue()


#: torch runs `ninja -v`.
NINJA = [
    "running build_ext",
    "building 'demo._C' extension",
    "creating /var/tmp/buildfarm.build.demo/src/build/temp.linux-x86_64-cpython-312/csrc",
    "[1/3] g++ -MMD -MF /s/build/csrc/ops.o.d -fPIC -I/s/csrc -c -c /s/csrc/ops.cpp -o /s/build/csrc/ops.o -DTORCH",
    "/s/csrc/ops.cpp:3: warning: unused variable",
    "[2/3] /o/cuda/bin/nvcc --generate-dependencies-with-compile -I/s -c -c /s/csrc/fwd.cu -o /s/build/fwd.o -O3",
]
CMAKE_NINJA = ["[1/4] Building CXX object CMakeFiles/x.dir/src/b.cpp.o", "[4/4] Linking CXX shared library libx.so"]
#: uv without a terminal.
DOWNLOADS = [
    "Resolved 34 packages in 2.1s",
    "Downloading torch (530.0MiB)",
    "Building demo @ file:///demo",
    "Downloading triton (153600.0KiB)",
    " Downloaded triton",
    " Downloaded torch",
    "Prepared 34 packages in 31.20s",
    "Installed 34 packages in 838ms",
]


def text_of(lines: Sequence[str], *, calls: Sequence[str] = ()) -> str:
    count = FileCount()
    for line in lines:
        count.read(line)
    for call in calls:
        count.read_call(call)
    return count.text()


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        ([], ""),
        (NINJA[:3], ""),
        (NINJA[:4], "1 of 3: ops.cpp"),
        (NINJA, "2 of 3: fwd.cu"),
        (CMAKE_NINJA[:1], "1 of 4: b.cpp"),
        (CMAKE_NINJA, "4 of 4: b.cpp"),
        (DOWNLOADS[:2], "download 0 bytes of 530.0 MiB: torch"),
        (DOWNLOADS[:4], "download 0 bytes of 680.0 MiB: torch and 1 more"),
        (DOWNLOADS[:5], "download 150.0 MiB of 680.0 MiB: torch"),
        (DOWNLOADS, ""),
        (["gate: values of ns::f; 34 tasks to start"], "(values of ns::f; 34 tasks to start)"),
        (["gate: 12 of 52 ops", "gate: 3 of 9 ops, again"], "(3 of 9 ops, again)"),
        (["#9 [build 2/5] RUN dnf install --assumeyes which", "#9 1.204 Complete!"], "step 2 of 5 of the image"),
    ],
)
def test_the_output_of_a_tool(lines: list[str], text: str) -> None:
    assert text_of(lines) == text


def test_the_launcher_names_the_files_that_are_being_compiled() -> None:
    assert text_of([], calls=["csrc/ops.cpp"]) == "file 1: ops.cpp"
    assert text_of(NINJA[:4], calls=["/s/csrc/ops.cpp", "/s/csrc/fwd.cu"]) == "1 of 3: fwd.cu"
    calls = ["/s/csrc/ops.cpp", "a.cu", "b.cu", "c.cu", "d.cu"]
    assert text_of(NINJA[:4], calls=calls) == "1 of 3: a.cu, b.cu and 2 more"


def test_compiler_trials_are_no_files_of_the_build() -> None:
    trials = ["/b/CMakeFiles/4.1/CompilerIdCUDA/CMakeCUDACompilerId.cu", "/o/self-test/buildfarm-check.cu"]
    assert text_of([], calls=trials) == ""


def test_setuptools_starts_ninja_once_for_each_extension() -> None:
    first = ["[1/2] g++ -c a.cpp -o a.o", "[2/2] g++ -c b.cpp -o b.o"]
    second = ["[1/3] g++ -c c.cpp -o c.o"]
    assert text_of([*first, *second]) == "3 of 5: c.cpp"
