"""Forms of messages: compilers, linkers, Python; colours, bytes that are no text, long lines, hostile paths."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.diagnosis.first_error import LONGEST, WIDTH, FirstError, Place, first_error, last_words, source_line


def read(text: str, tree: Path | None = None) -> FirstError:
    found = first_error(text.splitlines(), "/build/src", tree)
    assert found
    return found


@pytest.mark.parametrize(
    ("output", "sentence"),
    [
        ("/build/src/a.cpp:3:1: fatal error: 'x.h' file not found\n", "a.cpp:3:1: fatal error: 'x.h' file not found"),
        ('    a.cu(7): error #20: identifier "x" is undefined\n', 'a.cu(7): error #20: identifier "x" is undefined'),
        ('a.cu(7): catastrophic error: cannot open source file "x.h"\n', "a.cu(7): catastrophic error: cannot open"),
        ("g++: error: unrecognized command-line option ‘-std=c++29’\n", "g++: error: unrecognized command-line option"),
        (
            "nvlink error   : Undefined reference to 'f' in 'a.o'\n",
            "nvlink error : Undefined reference to 'f' in 'a.o'",
        ),
        ("ld.lld: error: undefined symbol: f()\n", "ld.lld: error: undefined symbol: f()"),
        ("/bin/sh: 1: cmake: not found\n", "/bin/sh: 1: cmake: not found"),
        ("make: *** No rule to make target 'a.o'.  Stop.\n", "make: *** No rule to make target 'a.o'. Stop."),
        ("error[E0432]: unresolved import\n", "error[E0432]: unresolved import"),
        ("a.cpp:1:2: error: one\nb.cpp:3:4: error: two\n", "a.cpp:1:2: error: one (2 errors in all)"),
        ("error: command 'swig' failed: No such file or directory\n", "error: command 'swig' failed: No such file"),
        (
            "conftest.c:1:1: error: a test of setup.py\nFAILED: [code=1] a.o\nnvcc -c a.cu\na.cu(1): error: real\n",
            "a.cu(1): error: real",
        ),
    ],
)
def test_programs_that_name_an_error(output: str, sentence: str) -> None:
    assert read(f"Building…\nerror: command 'g++' failed with exit code 1\n{output}").sentence.startswith(sentence)


def test_colours_and_other_bytes_do_not_hide_an_error() -> None:
    line = b"\x1b[01m\x1b[Ka.cpp:3:5:\x1b[m\x1b[K \x1b[01;31m\x1b[Kerror: \x1b[m\x1b[Kexpected \xff\xe9 before \x07\r\n"
    shown = b"    3 |   \x1b[01;31m\x1b[Kint\x1b[m\x1b[K x\xe9;\n      |   \x1b[01;31m\x1b[K^~~\x1b[m\x1b[K\n"
    error = read((line + shown).decode(errors="replace"))
    assert error.text == "a.cpp:3:5: error: expected \ufffd\ufffd before \\x07"
    assert error.excerpt == ("    3 |   int x\ufffd;", "      |   ^~~")


def test_long_messages_and_lines_are_cut_around_the_mark() -> None:
    code = "f(" + "x, " * 900 + "wrong);"
    mark = " " * code.index("wrong") + "^~~~~"
    error = read(f"a.cpp:1:1: error: {'std::tuple<' * 4000}\n    1 | {code}\n      | {mark}\n")
    assert len(error.text) == LONGEST
    assert error.text.endswith("…")
    first, second = error.excerpt
    assert len(first) <= WIDTH + 8
    assert first[second.index("^") :].startswith("wrong")


def test_the_last_exception_of_python_is_the_one_that_ended_the_build() -> None:
    first = (
        'Traceback (most recent call last):\n  File "/build/src/tools/cuda.py", line 4, in find\n    raise KeyError\n'
    )
    second = 'Traceback (most recent call last):\n  File "/build/src/setup.py", line 9, in <module>\n    find()\n'
    output = f"{first}KeyError\n\nDuring handling of the above exception, another exception occurred:\n\n{second}"
    assert (
        read(f"{output}RuntimeError: no CUDA\nerror: Failed to build `src`\n").text
        == "setup.py:9: RuntimeError: no CUDA"
    )
    wrapped = f"{output}subprocess.CalledProcessError: Command '['ninja']' returned non-zero exit status 1.\n"
    assert read(wrapped).text == "tools/cuda.py:4: KeyError"
    foreign = 'Traceback (most recent call last):\n  File "/usr/lib/x.py", line 1, in f\nValueError: no\n'
    assert (read(foreign).text, read(foreign).excerpt) == ("ValueError: no", ())


def test_a_source_that_only_prints_a_sentence() -> None:
    lines = ["+ uv build", "running build", "Install the frobnicator.", "error: Failed to build `src`", "  cause: x"]
    assert first_error(lines, "/build/src") is None
    assert last_words(lines) == "Install the frobnicator."
    assert last_words(["all is well"]) == ""


def test_the_line_is_read_from_the_source_where_the_compiler_shows_none(tmp_path: Path) -> None:
    (tmp_path / "csrc").mkdir()
    (tmp_path / "csrc" / "a.cu").write_text("one\n\t__global__ void k();\n")
    error = read('/build/src/csrc/a.cu(2): error: identifier "x" is undefined\n', tmp_path)
    assert error.text.startswith("csrc/a.cu(2): ")
    assert error.excerpt == ("    2 |         __global__ void k();",)


def test_nothing_outside_of_the_source_is_read(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tmp_path / "secret").write_text("secret\n")
    (tree / "link").symlink_to(tmp_path / "secret")
    (tree / "text").write_text("text\n")
    assert source_line(Place("/build/src/text", 1), "/build/src", tree) == "text"
    for file in ("../secret", "link", str(tmp_path / "secret"), "none", "text\0", "."):
        assert source_line(Place(file, 1), "/build/src", tree) is None
    assert source_line(Place("text", 7), "/build/src", tree) is None


def test_a_header_that_gcc_proposes_belongs_to_the_error_before_it() -> None:
    """The note stands behind the source that gcc shows, and another error ends the message."""
    note = (
        "a.cpp:1:1: note: ‘std::unique_ptr’ is defined in header ‘<memory>’; did you forget to ‘#include <memory>’?\n"
    )
    error = "a.cpp:4:10: error: ‘unique_ptr’ is not a member of ‘std’\n"
    shown = "    4 |     std::unique_ptr<int> one;\n      |          ^~~~~~~~~~\n"
    assert read(error + shown + note).message == error + note.rstrip()
    assert "include" not in read("a.cpp:3:1: error: expected ‘;’\n" + error + shown + note).message
