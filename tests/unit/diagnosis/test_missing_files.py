"""A build that misses a file: the hint names the file that setup.py means."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.diagnosis.first_error import first_error
from builder.diagnosis.hints import SourceTree, missing_file_hints

SOURCE = "/var/tmp/build/src"


def hints(tree: Path, *output: str, origin: Path | None = None) -> list[str]:
    error = first_error(output, SOURCE, tree)
    assert error
    return missing_file_hints(error.message, output, SourceTree(tree, SOURCE, origin))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("csrc/k.cu", "csrc/a.cpp", "deep/down/x.cpp"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


NINJA = "ninja: error: '{}', needed by 'build/x.o', missing and no known rule to make it"
COMPILER = "cc1plus: fatal error: {}: No such file or directory"
CMAKE = """CMake Error at CMakeLists.txt:6 (python_add_library):
  Cannot find source file:

    {}

  Tried extensions .c .C .c++ .cc .cpp .cxx .cu .mpp .m .M .mm .ixx .cppm"""


@pytest.mark.parametrize("form", [NINJA, COMPILER, CMAKE])
@pytest.mark.parametrize(
    ("file", "there"),
    [
        ("csrc/kk.cu", " (there is csrc/k.cu)"),
        (f"{SOURCE}/csrc/kk.cu", " (there is csrc/k.cu)"),
        ("src/x.cpp", " (there is deep/down/x.cpp)"),
        ("quite/another.cc", ""),
    ],
)
def test_a_misspelt_source_file_is_named(tree: Path, form: str, file: str, there: str) -> None:
    named = file.removeprefix(f"{SOURCE}/")
    (tree / "setup.py").write_text(f"sources = [{named!r}]")
    assert hints(tree, *form.format(file).splitlines()) == [f"setup.py names {named}, which does not exist{there}"]


def test_a_file_that_was_not_copied_is_not_misspelt(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "origin" / "csrc").mkdir(parents=True)
    (tmp_path / "origin" / "csrc" / "made.cu").touch()
    (hint,) = hints(tree, NINJA.format("csrc/made.cu"), origin=tmp_path / "origin")
    assert "git ignores it" in hint


@pytest.mark.parametrize("file", ["/usr/lib/x.cu", "../x.cu", "csrc/k.o", "csrc/k.cu"])
def test_other_files_have_no_hint(tree: Path, file: str) -> None:
    assert hints(tree, NINJA.format(file)) == []


GITMODULES = '[submodule "third"]\n path = third\n url = https://example.com/t.git\n'
COMMAND = f"g++ -I{SOURCE}/lib/cutlass/include -I/usr/include -c csrc/a.cpp"
GCC, NVCC = "{}: fatal error: {}: No such file or directory", '{}: error: cannot open source file "{}"'


@pytest.mark.parametrize(
    ("folder", "line"),
    [
        ("third", GCC.format("csrc/k.cu:1:10", "../third/x.h")),
        ("third", GCC.format(f"{SOURCE}/csrc/k.cu:1:10", "../third/deep/x.h")),
        ("third", NVCC.format("csrc/k.cu(1)", "../third/x.h")),
        ("lib/cutlass", GCC.format("csrc/a.cpp:1:10", "cutlass/cutlass.h")),
        ("third", f"CMake Error at CMakeLists.txt:3 (add_subdirectory): {SOURCE}/third/x is no folder"),
    ],
)
@pytest.mark.parametrize("absent", [True, False])
def test_an_empty_submodule_is_named_with_its_command(tree: Path, folder: str, line: str, *, absent: bool) -> None:
    (tree / ".gitmodules").write_text(GITMODULES.replace("= third", f"= {folder}"))
    if not absent:
        (tree / folder).mkdir(parents=True)
    (hint,) = hints(tree, COMMAND, line, origin=tree)
    assert hint == f"{folder} is a git submodule, and there are no files in it: `git submodule update --init {folder}`"
    (hint,) = hints(tree, COMMAND, line)
    assert "use the git repository" in hint, "an archive of a source distribution has no .git"


@pytest.mark.parametrize("case", ["full", "elsewhere", "no .gitmodules"])
def test_other_headers_have_nothing_to_do_with_a_submodule(tree: Path, case: str) -> None:
    if case != "no .gitmodules":
        (tree / ".gitmodules").write_text(GITMODULES)
    if case == "full":
        (tree / "third").mkdir()
        (tree / "third" / "README").touch()
    header = "../other/x.h" if case == "elsewhere" else "../third/x.h"
    assert hints(tree, GCC.format("csrc/k.cu:1:10", header), origin=tree) == []


def test_a_file_that_cython_makes(tree: Path) -> None:
    (tree / "csrc/a.cpp").rename(tree / "csrc/a.pyx")
    (hint,) = hints(tree, COMPILER.format("csrc/a.cpp"))
    assert "add `cython` to `build_requires`" in hint
