"""What sccache's log says of a build, as names; the lines are of sccache 0.16.0, shortened."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from builder.wheels.object_cache import unsafe
from builder.wheels.objects import Objects, Outcome, Reuse, read_objects

COMPILER, SERVER = "sccache::compiler::compiler", "sccache::server"


def line(room: str, text: str) -> str:
    return f"[2026-11-21T15:12:42.502Z DEBUG {room}] {text}\n"


def begun(name: str, *arguments: str) -> str:
    return line(COMPILER, f"[{name}]: get_cached_or_compile: {json.dumps(list(arguments))}")


def ended(name: str, result: str) -> str:
    return line(SERVER, f"[{name}]: compile result: {result}")


def kernel(source: str, results: str, out: str = "") -> tuple[str, str]:
    """An nvcc of one arch: what comes before its last step, and after. Results are h or m for its four steps."""
    stem = Path(source).stem
    out = out or stem
    words = ["cache hit" if letter == "h" else "cache miss" for letter in results]
    front = ["--orig_src_path_name", source, "x_0.cpp4.ii"]
    text = begun(f"{out}.o", "-c", source, "-o", f"build/{out}.o")
    text += begun(f"{stem}.module_id", *front) + ended(f"{stem}.module_id", words[0])
    text += begun(f"{stem}.ptx", *front) + ended(f"{stem}.ptx", words[1])
    text += begun(f"{stem}.cubin", "-arch=sm_90", "x_0.ptx", "-o", f"{stem}.cubin")
    text += ended(f"{stem}.cubin", words[2])
    text += begun(f"{out}.o", "-D__CUDACC__", "-c", "/tmp/sccache_nvccX/x_0.cudafe1.cpp", "-o", f"build/{out}.o")
    return text, ended(f"{out}.o", words[3]) + ended(f"{out}.o", "not cacheable")


@pytest.fixture
def told(tmp_path: Path) -> Path:
    return tmp_path


def objects(told: Path, *log: str) -> tuple[Reuse, ...]:
    (told / "server.log").write_text("".join(log))
    found = read_objects(told, "/project")
    assert found is not None
    return found.files


def test_a_host_compile_is_named_by_its_source(told: Path) -> None:
    hit = begun("kernels.o", "-MMD", "-MF", "x.d.c", "-c", "/project/csrc/cpu/kernels.cpp", "-o", "kernels.o")
    miss = begun("one.o", "-c", "one.c", "-o", "one.o")
    assert objects(told, hit, miss, ended("one.o", "cache miss"), ended("kernels.o", "cache hit")) == (
        Reuse("csrc/cpu/kernels.cpp", "C++", Outcome.REUSED),
        Reuse("one.c", "C", Outcome.COMPILED),
    )


@pytest.mark.parametrize(
    ("results", "outcome", "detail"),
    [
        ("hhhh", Outcome.REUSED, ""),
        ("mmmm", Outcome.COMPILED, ""),
        ("mhhm", Outcome.PARTLY, "2 of 4 steps"),
    ],
)
def test_a_kernel_is_reused_when_each_step_of_nvcc_is(told: Path, results: str, outcome: Outcome, detail: str) -> None:
    for out in ("", "another_name"):
        log = "".join(kernel("/project/csrc/forward.cu", results, out))
        assert objects(told, log) == (Reuse("csrc/forward.cu", "CUDA", outcome, detail),)


def test_two_sources_of_one_name_at_once_are_told_apart(told: Path) -> None:
    first, last = kernel("/project/cuda/op.cu", "hhhh")
    beside = begun("op.o", "-c", "/project/cpu/op.cpp", "-o", "build/cpu/op.o")
    assert objects(told, beside, ended("op.o", "cache miss"), first, last) == (
        Reuse("cpu/op.cpp", "C++", Outcome.COMPILED),
        Reuse("cuda/op.cu", "CUDA", Outcome.REUSED),
    )
    other, rest = kernel("/project/more/other.cu", "mmmm")
    assert objects(told, first, other, last, rest) == (
        Reuse("cuda/op.cu", "CUDA", Outcome.REUSED),
        Reuse("more/other.cu", "CUDA", Outcome.COMPILED),
    )


@pytest.mark.parametrize(
    ("log", "why"),
    [
        (line(SERVER, 'parse_arguments: CannotCache(multiple input files): ["-c", "a.cu", "b"]'), "multiple input"),
        (line(SERVER, 'parse_arguments: CannotCache(-save-temps, x): ["-c", "a.cu"]'), "-save-temps"),
        (begun("a.o", "-c", "a.cu", "-o", "a.o") + ended("a.o", "compile failed"), "compile failed"),
        (begun("a.o", "-c", "a.cu", "-o", "a.o"), "did not end"),
    ],
)
def test_what_was_not_cached_has_a_reason(told: Path, log: str, why: str) -> None:
    (file,) = objects(told, log)
    assert (file.name, file.outcome) == ("a.cu", Outcome.NOT_CACHED)
    assert why in file.detail


def test_what_makes_no_object_of_the_wheel_is_left_out(told: Path) -> None:
    trial = begun("t.o", "-c", "/project/build/CMakeFiles/CMakeScratch/TryCompile-x/t.c", "-o", "t.o")
    trial += begun("c.o", "-c", "/x/cmake/data/share/cmake-4.4/Modules/CMakeCUDACompilerABI.cu", "-o", "c.o")
    check = begun("first.o", "-c", "/buildfarm/objects/check/buildfarm-check.cu", "-o", "first.o")
    assert objects(told, trial, ended("t.o", "cache miss"), check, ended("first.o", "cache miss")) == ()


def test_a_log_in_other_words_is_no_error(told: Path) -> None:
    assert objects(told, "thread panicked\n", line(SERVER, "[x.o]: compile result: cache hit"), "\xff\n") == ()


def test_a_cache_that_was_not_used_says_why(told: Path) -> None:
    (told / "refused").write_text("it is not used\n")
    found = read_objects(told, "/project")
    assert found == Objects(refused="it is not used")
    assert found.sentence() == "object cache not used: it is not used"
    assert Objects.from_json(found.to_json()) == found


def test_no_cache_is_nothing(told: Path) -> None:
    assert read_objects(told / "absent", "/project") is None


def test_names_reach_the_report_and_come_back() -> None:
    files = (
        Reuse("a.cu", "CUDA", Outcome.REUSED),
        Reuse("b.cu", "CUDA", Outcome.PARTLY, "1 of 4 steps"),
        *(Reuse(f"{n}.cpp", "C++", Outcome.COMPILED) for n in range(8)),
    )
    found = Objects(files)
    assert Objects.from_json(json.loads(json.dumps(found.to_json()))) == found
    assert found.named(Outcome.REUSED) == ["a.cu"]
    said = "0.cpp, 1.cpp, 2.cpp, 3.cpp, 4.cpp, 5.cpp and 2 more"
    assert found.sentence() == f"objects: 1 reused (a.cu); 1 partly reused (b.cu); 8 compiled ({said})"


def test_a_file_taken_in_by_the_assembler_is_seen(tmp_path: Path) -> None:
    (tmp_path / "plain.cpp").write_text("int incbin;\n")
    (tmp_path / "notes.md").write_text('.incbin "x"\n')
    assert unsafe(tmp_path) == ""
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "blob.S").write_text('.incbin "weights.bin"\n')
    assert "deep/blob.S" in unsafe(tmp_path)
