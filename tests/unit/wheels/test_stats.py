"""Statistics of the compiler cache from sccache's log; the lines are from sccache 0.16.0, shortened."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from builder.records.cache_statistics import CacheOutcome, CacheStatistics, SourceFile
from builder.wheels.sccache import stats
from builder.wheels.sccache.configure import unsafe_source
from builder.wheels.sccache.stats import read_statistics

COMPILER, SERVER = "sccache::compiler::compiler", "sccache::server"


def line(module: str, text: str) -> str:
    return f"[2026-11-21T15:12:42.502Z DEBUG {module}] {text}\n"


def begin(name: str, *arguments: str) -> str:
    return line(COMPILER, f"[{name}]: get_cached_or_compile: {json.dumps(list(arguments))}")


def result(name: str, result: str) -> str:
    return line(SERVER, f"[{name}]: compile result: {result}")


def kernel(source: str, results: str, out: str = "") -> tuple[str, str]:
    """An nvcc of one arch: what comes before its last step, and after. Results are h or m for its four steps."""
    stem = Path(source).stem
    out = out or stem
    words = ["cache hit" if letter == "h" else "cache miss" for letter in results]
    front = ["--orig_src_path_name", source, "x_0.cpp4.ii"]
    text = begin(f"{out}.o", "-c", source, "-o", f"build/{out}.o")
    text += begin(f"{stem}.module_id", *front) + result(f"{stem}.module_id", words[0])
    text += begin(f"{stem}.ptx", *front) + result(f"{stem}.ptx", words[1])
    text += begin(f"{stem}.cubin", "-arch=sm_90", "x_0.ptx", "-o", f"{stem}.cubin")
    text += result(f"{stem}.cubin", words[2])
    text += begin(f"{out}.o", "-D__CUDACC__", "-c", "/tmp/sccache_nvccX/x_0.cudafe1.cpp", "-o", f"build/{out}.o")
    return text, result(f"{out}.o", words[3]) + result(f"{out}.o", "not cacheable")


def files(folder: Path, *log: str) -> tuple[SourceFile, ...]:
    (folder / "server.log").write_text("".join(log))
    found = read_statistics(folder, "/project")
    assert found is not None
    return found.files


def test_a_host_compile_has_the_name_of_its_source(tmp_path: Path) -> None:
    hit = begin("kernels.o", "-MMD", "-MF", "x.d.c", "-c", "/project/csrc/cpu/kernels.cpp", "-o", "kernels.o")
    miss = begin("one.o", "-c", "one.c", "-o", "one.o")
    assert files(tmp_path, hit, miss, result("one.o", "cache miss"), result("kernels.o", "cache hit")) == (
        SourceFile("csrc/cpu/kernels.cpp", "C++", CacheOutcome.REUSED),
        SourceFile("one.c", "C", CacheOutcome.COMPILED),
    )


@pytest.mark.parametrize(
    ("results", "outcome", "detail"),
    [
        ("hhhh", CacheOutcome.REUSED, ""),
        ("mmmm", CacheOutcome.COMPILED, ""),
        ("mhhm", CacheOutcome.PARTLY, "2 of 4 steps"),
    ],
)
def test_a_kernel_is_reused_when_each_step_of_nvcc_is(
    tmp_path: Path, results: str, outcome: CacheOutcome, detail: str
) -> None:
    for out in ("", "another_name"):
        log = "".join(kernel("/project/csrc/forward.cu", results, out))
        assert files(tmp_path, log) == (SourceFile("csrc/forward.cu", "CUDA", outcome, detail),)


def test_two_sources_with_one_name_at_the_same_time_are_distinguished(tmp_path: Path) -> None:
    first, last = kernel("/project/cuda/op.cu", "hhhh")
    beside = begin("op.o", "-c", "/project/cpu/op.cpp", "-o", "build/cpu/op.o")
    assert files(tmp_path, beside, result("op.o", "cache miss"), first, last) == (
        SourceFile("cpu/op.cpp", "C++", CacheOutcome.COMPILED),
        SourceFile("cuda/op.cu", "CUDA", CacheOutcome.REUSED),
    )
    other, rest = kernel("/project/more/other.cu", "mmmm")
    assert files(tmp_path, first, other, last, rest) == (
        SourceFile("cuda/op.cu", "CUDA", CacheOutcome.REUSED),
        SourceFile("more/other.cu", "CUDA", CacheOutcome.COMPILED),
    )


@pytest.mark.parametrize(
    ("log", "why"),
    [
        (line(SERVER, 'parse_arguments: CannotCache(multiple input files): ["-c", "a.cu", "b"]'), "multiple input"),
        (line(SERVER, 'parse_arguments: CannotCache(-save-temps, x): ["-c", "a.cu"]'), "-save-temps"),
        (begin("a.o", "-c", "a.cu", "-o", "a.o") + result("a.o", "compile failed"), "compile failed"),
        (begin("a.o", "-c", "a.cu", "-o", "a.o"), "logged no result"),
    ],
)
def test_a_file_that_was_not_cached_has_a_reason(tmp_path: Path, log: str, why: str) -> None:
    (file,) = files(tmp_path, log)
    assert (file.name, file.outcome) == ("a.cu", CacheOutcome.NOT_CACHED)
    assert why in file.detail


def test_trial_compiles_are_left_out(tmp_path: Path) -> None:
    trial = begin("t.o", "-c", "/project/build/CMakeFiles/CMakeScratch/TryCompile-x/t.c", "-o", "t.o")
    trial += begin("c.o", "-c", "/x/cmake/data/share/cmake-4.4/Modules/CMakeCUDACompilerABI.cu", "-o", "c.o")
    check = begin("first.o", "-c", "/buildfarm/objects/check/buildfarm-check.cu", "-o", "first.o")
    assert files(tmp_path, trial, result("t.o", "cache miss"), check, result("first.o", "cache miss")) == ()


def test_unknown_lines_are_no_error(tmp_path: Path) -> None:
    assert files(tmp_path, "thread panicked\n", line(SERVER, "[x.o]: compile result: cache hit"), "\xff\n") == ()


def test_a_cache_that_was_not_used_has_a_reason(tmp_path: Path) -> None:
    (tmp_path / "refused").write_text("it is not used\n")
    found = read_statistics(tmp_path, "/project")
    assert found == CacheStatistics(refused="it is not used")
    assert found.sentence() == "compiler cache not used: it is not used"
    assert CacheStatistics.from_json(found.to_json()) == found


def server_statistics(folder: Path, *, executed: int = 0, refused: int = 0) -> None:
    """As `sccache --show-stats --stats-format=json` prints it."""
    counts = {"requests_executed": executed, "requests_not_cacheable": refused}
    (folder / "stats.json").write_text(json.dumps({"stats": counts, "version": "0.17.0"}))


NEW_FORM = [
    pytest.param(lambda log: log.replace("] [", "] object ["), id="no known line"),
    pytest.param(lambda log: log.replace("compile result", "result"), id="no known result"),
    pytest.param(lambda log: log.replace("get_cached_or_compile", "lookup"), id="no known begin"),
    pytest.param(lambda log: log.replace(" DEBUG ", " debug "), id="a different level"),
]


@pytest.mark.parametrize("change", NEW_FORM)
def test_a_log_in_a_new_form_is_one_warning_and_no_figures(
    tmp_path: Path, change: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    stats._warn_once.cache_clear()
    log = begin("one.o", "-c", "one.c", "-o", "one.o") + result("one.o", "cache hit")
    (tmp_path / "server.log").write_text(change(log))
    server_statistics(tmp_path, executed=1)
    for _ in range(2):
        found = read_statistics(tmp_path, "/project")
    assert found == CacheStatistics(unreadable=found.unreadable if found else "")
    assert found.sentence().startswith(
        "objects: cannot tell how many were reused: buildfarm cannot read the log of sccache 0.17.0"
    )
    assert CacheStatistics.from_json(found.to_json()) == found
    assert " ".join(capsys.readouterr().err.split()).count("warning: reuse of objects is not reported") == 1


def test_unreadable_statistics_count_as_a_new_form(tmp_path: Path) -> None:
    (tmp_path / "stats.json").write_text("Compile requests 1\n")
    (tmp_path / "server.log").write_text("compiled one.o\n")
    found = read_statistics(tmp_path, "/project")
    assert found is not None
    assert "buildfarm cannot read the log" in found.unreadable


def test_a_known_log_is_read_whatever_the_release(tmp_path: Path) -> None:
    server_statistics(tmp_path, executed=1, refused=1)
    log = begin("one.o", "-c", "one.c", "-o", "one.o") + result("one.o", "cache hit")
    log += line(SERVER, 'parse_arguments: CannotCache(multiple input files): ["-c", "a.cu", "b"]')
    assert [file.name for file in files(tmp_path, log)] == ["a.cu", "one.c"]


def test_a_build_that_compiled_nothing_needs_no_known_line(tmp_path: Path) -> None:
    server_statistics(tmp_path)
    assert files(tmp_path, "server started\n") == ()


def test_a_build_without_a_cache_has_no_statistics(tmp_path: Path) -> None:
    assert read_statistics(tmp_path / "absent", "/project") is None


def test_statistics_survive_json() -> None:
    sources = (
        SourceFile("a.cu", "CUDA", CacheOutcome.REUSED),
        SourceFile("b.cu", "CUDA", CacheOutcome.PARTLY, "1 of 4 steps"),
        *(SourceFile(f"{n}.cpp", "C++", CacheOutcome.COMPILED) for n in range(8)),
    )
    found = CacheStatistics(sources)
    assert CacheStatistics.from_json(json.loads(json.dumps(found.to_json()))) == found
    assert found.named(CacheOutcome.REUSED) == ["a.cu"]
    compiled = "0.cpp, 1.cpp, 2.cpp, 3.cpp, 4.cpp, 5.cpp and 2 more"
    assert found.sentence() == f"objects: 1 reused (a.cu); 1 partly reused (b.cu); 8 compiled ({compiled})"


def test_a_source_with_incbin_is_unsafe(tmp_path: Path) -> None:
    (tmp_path / "plain.cpp").write_text("int incbin;\n")
    (tmp_path / "notes.md").write_text('.incbin "x"\n')
    assert unsafe_source(tmp_path) == ""
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "blob.S").write_text('.incbin "weights.bin"\n')
    assert "deep/blob.S" in unsafe_source(tmp_path)
