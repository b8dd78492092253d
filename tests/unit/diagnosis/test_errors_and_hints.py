"""Messages of compilers, linkers and Python, made up and real: the first error of an output, and its known hints."""

import re
from pathlib import Path

import pytest
import yaml

from builder.diagnosis import known_errors
from builder.diagnosis.first_error import LONGEST, WIDTH, FirstError, Place, first_error, last_words, source_line
from builder.diagnosis.known_errors import (
    SECTIONS,
    KnownError,
    header_hints,
    hints_for,
    knowledge,
    missing_file_hints,
    plain_quotes,
)
from builder.diagnosis.target_version import target_version, written
from builder.matrix.axes import Cuda, Torch
from builder.wheels.failures import was_killed


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
        ("nvlink error   : Undefined reference to 'f' in 'a.o'\n", "nvlink error : Undefined reference to 'f' in"),
        ("\n_mask.pyx:122:23: Cannot convert\nCompileError: _mask.pyx\n", "_mask.pyx:122:23: Cannot convert"),
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


NEWEST, CUDA = Torch(2, 15, 0), Cuda(13, 0)
FILE = Path(known_errors.__file__).with_name("known_errors.yaml")


def hints(message: str, torch: Torch = NEWEST, cuda: Cuda = CUDA, *, container: bool = False) -> list[str]:
    return hints_for(FirstError(message, message), torch, cuda, container=container)


def test_every_row_has_a_source_and_a_text() -> None:
    rows = knowledge().errors
    assert len(rows) >= 30
    for row in rows:
        assert row.source, row
        assert row.hint, row
        assert row.about, row
        assert row.forms, row
        assert (row.torch is not None) == (row.section == "removed_from_torch")
    for package in knowledge().packages:
        assert package.pypi or package.submodule or (package.debian and package.dnf), package


@pytest.mark.parametrize("row", [row for row in knowledge().errors if row.example], ids=lambda row: row.example[:40])
def test_the_example_of_a_row_finds_this_row_and_no_earlier_one(row: KnownError) -> None:
    text = plain_quotes(row.example)
    found = [each for each in knowledge().errors if any(form.search(text) for form in each.forms)]
    assert found, row.example
    assert found[0] == row


def test_every_message_has_an_example() -> None:
    rows = yaml.safe_load(FILE.read_text())
    lacking = [row for section in SECTIONS for row in rows[section] if "message" in row and not row.get("example")]
    assert lacking == []


@pytest.mark.parametrize(
    "row", [row for row in yaml.safe_load(FILE.read_text())["removed_from_torch"] if "names" in row]
)
def test_names_are_found_in_the_words_of_every_compiler(row: dict[str, list[str]]) -> None:
    for name in row["names"]:
        for message in (
            f"a.cpp:1:1: error: ‘{name}’ was not declared in this scope",
            f"a.c:1:1: error: ‘{name}’ undeclared (first use in this function)",
            f"a.c:1:1: error: implicit declaration of function ‘{name}’",
            f"a.cpp:1:1: error: ‘{name}’ does not name a type",
            f"a.cpp:1:1: error: ‘class at::Tensor’ has no member named ‘{name}’",
            f"a.cpp:1:1: error: use of undeclared identifier '{name}'",
            f'a.cu(1): error: identifier "{name}" is undefined',
        ):
            [hint] = hints(message)
            assert f"removed {name}: " in hint
            assert hints(message.replace(name, f"my_{name}x")) == []


@pytest.mark.parametrize("header", ["THC/THC.h", "THC/THCGeneral.h", "TH/TH.h", "c10/util/variant.h"])
def test_headers_are_found_in_the_words_of_every_compiler(header: str) -> None:
    for message in (
        f"a.cpp:1:10: fatal error: {header}: No such file or directory",
        f"a.cpp:1:10: fatal error: '{header}' file not found",
        f'a.cu(1): catastrophic error: cannot open source file "{header}"',
    ):
        [hint] = hints(message)
        assert f"removed {header}: " in hint
    assert hints(f"a.cpp:1:10: fatal error: my/{header}: No such file or directory") == []


@pytest.mark.parametrize(
    ("message", "hint"),
    [
        (
            "a.cpp:1:1: fatal error: glm/glm.hpp: No such file or directory",
            "`libglm-dev` (Debian, Ubuntu) and `glm-devel`",
        ),
        ("a.cpp:1:1: fatal error: Eigen/Core: No such file or directory", "`libeigen3-dev`"),
        ("a.cpp:1:1: fatal error: 'GL/gl.h' file not found", "`libgl-dev`"),
        ("/usr/bin/ld: cannot find -lpng: No such file or directory", "the library png is in `libpng-dev`"),
        ("/usr/bin/ld: cannot find -lpng", "the library png is in `libpng-dev`"),
        ("CMake Error: Could NOT find JPEG (missing: JPEG_LIBRARY)", "JPEG is in `libjpeg62-turbo-dev`"),
        (
            "a.cpp:1:1: fatal error: cudnn.h: No such file or directory",
            "`nvidia-cudnn-cu13`: add it to `build_requires`",
        ),
        ("a.cpp:1:1: fatal error: cutlass/cutlass.h: No such file or directory", "submodule"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'cmake'", "add `cmake` to `build_requires`"),
        ("/bin/sh: 1: swig: not found", "add `swig`"),
        ("ModuleNotFoundError: No module named 'pybind11.setup_helpers'", "add `pybind11` to"),
        ("ModuleNotFoundError: No module named 'pkg_resources'", "add `setuptools<82`"),
        ("ModuleNotFoundError: No module named 'torch'", "--no-build-isolation"),
        ("/env/bin/python: No module named cython", "add `cython` to `build_requires`"),
        ("LookupError: setuptools-scm was unable to detect version for /project.", "a build has no `.git`"),
        ("git.exc.InvalidGitRepositoryError: /project", "a build has no `.git`"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'nvidia-smi'", "no driver"),
        ("a.cpp:1:1: error: unused variable ‘b’ [-Werror=unused-variable]", "delete `-Werror`"),
    ],
)
def test_what_is_missing_has_the_name_of_its_package(message: str, hint: str) -> None:
    [given] = hints(message)
    assert hint in given


def test_in_a_container_the_image_needs_the_package() -> None:
    [hint] = hints("a.cpp:1:1: fatal error: glm/glm.hpp: No such file or directory", container=True)
    assert hint.endswith("under `images:` in matrix.yaml, name an image that has it")


@pytest.mark.parametrize(
    "message",
    [
        "a.cpp:1:10: fatal error: my_header.h: No such file or directory",
        "a.cpp:1:1: error: ‘variant’ was not declared in this scope",
        "a.cpp:1:1: error: ‘Max’ is not a member of ‘mine’",
        "a.cpp:1:1: error: no matching function for call to ‘AT_CHECK_MINE(int)’",
        'a.cu(1): error: no operator "+" matches these operands operand types are: Vec + Vec',
        "a.cpp:1:1: error: cannot convert ‘at::Tensor’ to ‘c10::ScalarType’",
        "/usr/bin/ld: cannot find -lmine: No such file or directory",
        "FileNotFoundError: [Errno 2] No such file or directory: 'data.txt'",
    ],
)
def test_other_errors_have_no_hint(message: str) -> None:
    assert hints(message) == []


def test_a_build_for_an_older_release_has_no_hint_about_a_newer_one() -> None:
    nvtx = "a.cpp:1:1: fatal error: nvToolsExt.h: No such file or directory"
    assert hints(nvtx, cuda=Cuda(12, 4)) == []
    assert re.match("CUDA 12.9 moved or removed nvToolsExt.h", hints(nvtx)[0])


def test_a_header_of_an_installed_package_is_not_searched() -> None:
    message = "a.c:1:10: fatal error: cublas_v2.h: No such file or directory"
    error = FirstError(message, message)
    (found,) = hints_for(error, NEWEST, CUDA, container=False, packages=["nvidia-cublas==13.1.0.3"])
    assert "is in `nvidia-cublas`, which is installed" in found


@pytest.mark.parametrize(
    ("output", "sentence", "hint"),
    [
        (
            "/x/ld: main.o: undefined reference to symbol 'base'\n"
            "/x/ld: ./libb.so: error adding symbols: DSO missing from command line\n",
            "main.o: undefined reference to symbol 'base'",
            "calls functions of libb.so",
        ),
        (
            "/x/ld: i386 architecture of input file `x32.o' is incompatible with i386:x86-64 output\n",
            "i386 architecture",
            "another processor",
        ),
        ("/x/ld: cannot open linker script file absent.map: No such file\n", "absent.map", "`-Wl,--version-script`"),
        ("/x/ld:junk.o: file format not recognized; treating as linker script\n", "junk.o", "Git LFS"),
        ("/x/ld: lto.o: plugin needed to handle lto object\n", "plugin needed", "-flto"),
        ("/x/ld: error: nopic.o: requires dynamic R_X86_64_32 reloc; recompile with -fPIC\n", "recompile", "-fPIC"),
        ("big3.o: in function `f':\nx: relocation truncated to fit: R_X86\n", "truncated", "fewer architectures"),
        ("mold: fatal: library not found: cuda\n", "library not found", "libcuda belongs to the driver"),
        ("ld: error: unable to find library -lpng\n", "-lpng", "the library png is in `libpng-dev`"),
        ("ld: error: undefined hidden symbol: h\n>>> referenced by hid.c\n", "undefined hidden", "hidden visibility"),
        (
            "ptxas b.ptx, line 29; error   : Feature '.bf16x2' requires .target sm_80 or higher\n"
            "ptxas fatal   : Ptx assembly aborted due to errors\n",
            "Feature '.bf16x2'",
            "does not have .bf16x2",
        ),
        (
            "nvlink error   : Multiple definition of '_Z1fi' in 'm2.o', first defined in 'm1.o'\n",
            "Multiple definition",
            "make it `inline` or `static`",
        ),
    ],
)
def test_messages_of_ptxas_and_of_each_linker(output: str, sentence: str, hint: str) -> None:
    """As ptxas 13.5, GNU ld 2.40, gold 1.16, LLD 14 and mold 1.10 print them, with a build's last lines behind."""
    end = "collect2: error: ld returned 1 exit status\nerror: command '/usr/bin/g++' failed with exit code 1\n"
    error = first_error(f"running build_ext\n{output}{end}".splitlines(), "/src")
    assert error is not None
    assert sentence in error.sentence
    [given] = hints_for(error, NEWEST, CUDA, container=False)
    assert hint in given


SOURCE = "/var/tmp/build/src"


def missing(tree: Path, *output: str, origin: Path | None = None) -> list[str]:
    error = first_error(output, SOURCE, tree)
    assert error
    return missing_file_hints(error.message, output, SOURCE, tree, origin)


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


def test_a_file_that_was_not_copied_is_not_misspelt(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "origin" / "csrc").mkdir(parents=True)
    (tmp_path / "origin" / "csrc" / "made.cu").touch()
    (hint,) = missing(tree, NINJA.format("csrc/made.cu"), origin=tmp_path / "origin")
    assert "git ignores it" in hint


@pytest.mark.parametrize("file", ["/usr/lib/x.cu", "../x.cu", "csrc/k.o", "csrc/k.cu"])
def test_other_files_have_no_hint(tree: Path, file: str) -> None:
    assert missing(tree, NINJA.format(file)) == []


@pytest.mark.parametrize(
    ("header", "hint"),
    [
        ("ops.h", "the source has no file ops.h: the archive lacks headers that its MANIFEST.in does not name"),
        ("a.h", "a.h is in the folder deep/include/ of the source"),
        ("include/a.h", "include/a.h is in the folder deep/ of the source"),
    ],
)
def test_a_header_is_elsewhere_in_the_source_or_nowhere(tree: Path, header: str, hint: str) -> None:
    (tree / "deep/include").mkdir()
    (tree / "deep/include/a.h").touch()
    message = f"csrc/k.cu:3:10: fatal error: {header}: No such file or directory"
    assert hint in header_hints(message, [message, f'    3 | #include "{header}"'], tree)[0]
    assert header_hints(message, [message, f"    3 | #include <{header}>"], tree) == []


GITMODULES = """[submodule "other"]
	path = other
[submodule "third"]
	url = https://name:secret@example.com/t.git
	path = third
"""
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
def test_an_empty_submodule_is_named_with_its_url(tree: Path, folder: str, line: str, *, absent: bool) -> None:
    (tree / ".gitmodules").write_text(GITMODULES.replace("= third", f"= {folder}"))
    if not absent:
        (tree / folder).mkdir(parents=True)
    (hint,) = missing(tree, COMMAND, line, origin=tree)
    assert hint == (
        f"{folder} (https://***@example.com/t.git) is a git submodule, and there are no files in it:"
        f" `git submodule update --init {folder}`"
    )
    (hint,) = missing(tree, COMMAND, line)
    assert "use the git repository" in hint, "an archive of a source distribution has no .git"
    (tree / folder).mkdir(parents=True, exist_ok=True)
    (tree / folder / "README").touch()
    assert missing(tree, COMMAND, line, origin=tree) == []


def test_other_headers_have_nothing_to_do_with_a_submodule(tree: Path) -> None:
    (tree / ".gitmodules").write_text(GITMODULES)
    assert missing(tree, GCC.format("csrc/k.cu:1:10", "../elsewhere/x.h"), origin=tree) == []


def test_a_file_that_cython_makes(tree: Path) -> None:
    (tree / "csrc/a.cpp").rename(tree / "csrc/a.pyx")
    (hint,) = missing(tree, COMPILER.format("csrc/a.cpp"))
    assert "add `cython` to `build_requires`" in hint


PLAN = Torch(2, 11, 0)
RIGHT, TRAP, SHORT = "0x020a000000000000", "0x0210000000000000", "0x0210"


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("setup.py", f'cxx = ["-O3", "-DTORCH_TARGET_VERSION={RIGHT}"]'),
        ("setup.py", f'define_macros=[("TORCH_TARGET_VERSION", "{RIGHT}")]'),
        ("setup.py", f"macros = {{'TORCH_TARGET_VERSION': '{RIGHT}ULL'}}"),
        ("setup.py", f'TARGET = "{RIGHT}"\nmacros = [f"-DTORCH_TARGET_VERSION={{TARGET}}"]'),
        ("setup.py", f'macros = ["-DTORCH_TARGET_VERSION=" + TARGET]\nTARGET: str = "{RIGHT}"'),
        ("setup.py", 'cxx = [f"-DTORCH_TARGET_VERSION={hex((2 << 56) | (10 << 48))}"]'),
        ("CMakeLists.txt", f"target_compile_definitions(ops PRIVATE TORCH_TARGET_VERSION={RIGHT})"),
        ("cmake/abi.cmake", f"add_compile_options(-DTORCH_TARGET_VERSION={RIGHT})"),
        ("CMakeLists.txt", f"set(TORCH_TARGET_VERSION {RIGHT})"),
        ("CMakeLists.txt", f"set(ABI {RIGHT})\nadd_definitions(-DTORCH_TARGET_VERSION=${{ABI}})"),
        ("pyproject.toml", f'cmake.define.TORCH_TARGET_VERSION = "{RIGHT}"'),
        ("csrc/ops.h", f"#define TORCH_TARGET_VERSION {RIGHT}ULL"),
        ("csrc/ops.cu", "  # define TORCH_TARGET_VERSION (((0ULL + 2) << 56) | ((0ULL + 10) << 48))"),
        ("csrc/ops.h", "#define TORCH_TARGET_VERSION ((uint64_t)2 << 56 | (uint64_t)10 << 48)"),
        ("csrc/ops.h", "#define TORCH_TARGET_VERSION TORCH_VERSION_2_10_0"),
    ],
)
def test_a_value_and_its_place(tmp_path: Path, name: str, line: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(f"\n{line}\n")
    found = target_version(tmp_path, PLAN)
    assert found is not None
    assert (found.torch, found.meant) == (Torch(2, 10, 0), Torch(2, 10, 0))
    number = 1 + next(place for place, text in enumerate(f"\n{line}".split("\n")) if "TORCH_TARGET" in text)
    assert str(found) == f"{name}:{number}"


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("setup.py", f"# -DTORCH_TARGET_VERSION={TRAP}"),
        ("setup.py", '"""TORCH_TARGET_VERSION is set below."""'),
        ("setup.py", 'cxx.append("-DTORCH_TARGET_VERSION=" + os.environ["TORCH_TARGET_VERSION"])'),
        ("csrc/ops.h", f"#if TORCH_TARGET_VERSION >= {TRAP}"),
        ("csrc/ops.h", "#ifdef TORCH_TARGET_VERSION\n#define X 1\n#endif"),
        ("csrc/ops.h", f"// -DTORCH_TARGET_VERSION={TRAP}"),
        ("third_party/torch/version.h", f"#define TORCH_TARGET_VERSION {TRAP}"),
        ("README.md", f"-DTORCH_TARGET_VERSION={TRAP}"),
    ],
)
def test_what_is_no_value(tmp_path: Path, name: str, line: str) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text(f"{line}\n")
    assert target_version(tmp_path, PLAN) is None


def test_the_newest_value_that_suits_the_torch(tmp_path: Path) -> None:
    values = {"2.10": RIGHT, "2.11": "0x020b000000000000", "2.12": "0x020c000000000000"}
    (tmp_path / "setup.py").write_text("".join(f'"-DTORCH_TARGET_VERSION={value}"\n' for value in values.values()))
    for series, torch in (
        ("2.10", Torch(2, 10, 0)),
        ("2.11", PLAN),
        ("2.12", Torch(2, 13, 0)),
        ("2.10", Torch(2, 9, 1)),
    ):
        found = target_version(tmp_path, torch)
        assert found is not None
        assert found.torch.series == series


@pytest.mark.parametrize(
    ("value", "means", "meant"),
    [(TRAP, "2.16", "2.10"), (SHORT, "0.0", "2.10"), ("0x0209", "0.0", "2.9"), ("0x20a", "0.0", "2.10")],
)
def test_a_wrong_form(tmp_path: Path, value: str, means: str, meant: str) -> None:
    found = target_version(tmp_path, PLAN, f"CXXFLAGS -DTORCH_TARGET_VERSION={value}", "extension.yaml")
    assert found is not None
    assert (found.torch.series, found.meant.series, found.file) == (means, meant, "extension.yaml")
    assert written(Torch(2, 10, 0)) == RIGHT


LOGS = Path(__file__).parent / "logs"
LOGGED_TORCH, LOGGED_CUDA = Torch(2, 15, 0), Cuda(13, 0)

#: Log → how the sentence begins, a line of the excerpt, and a part of the hint ("" where there is none).
EXPECTED = {
    "gcc-at_check": (
        "at_check.cpp:4:3: error: ‘AT_CHECK’ was not declared in this scope",
        '    4 |   AT_CHECK(n > 0, "n must be positive");',
        "torch 1.5 removed AT_CHECK: write `TORCH_CHECK`",
    ),
    "gcc-dispatch": (
        "torch/include/torch/headeronly/core/Dispatch.h:36:63: error: cannot convert ‘const at::Depre",
        "used in dispatch.cpp:4",
        "torch 2.6 removed `AT_DISPATCH_…(x.type(), …)`: write `x.scalar_type()`",
    ),
    "gcc-getthc": (
        "getthc.cpp:2:32: error: ‘class at::Context’ has no member named ‘getTHCState’",
        "      |                                ^~~~~~~~~~~",
        "torch 1.11 removed getTHCState",
    ),
    "gcc-guard": ("guard.cpp:3:34: error: ‘OptionalCUDAGuard’ is not", "      | ", "include `<c10/cuda/CUDAGuard.h>`"),
    "gcc-isvar": (
        "isvar.cpp:2:33: error: ‘class at::Tensor’ has no member",
        "    2 | ",
        "torch 2.14 removed is_variable",
    ),
    "nvcc-arch": ("nvcc fatal : Unsupported gpu architecture 'compute_35'", "", "`override_architectures: true`"),
    "nvcc-gcc-17": (
        "nvidia/cu13/bin/..//include/crt/host_config.h:137:2: error: #error -- unsupported GNU version!",
        "  137 | #error -- unsupported GNU version!",
        "takes gcc up to 15: install g++-15",
    ),
    "nvcc-cub": (
        'ksum.cu(5): error: namespace "cub" has no member "Max"',
        "    5 |     x[0] = R(t).Reduce(x[threadIdx.x], cub::Max());",
        "`cuda::maximum<>`",
    ),
    "nvcc-half": (
        'half2.cu(3): error: no operator "+" matches',
        "      |                 ^",
        "-U__CUDA_NO_HALF_OPERATORS__",
    ),
    "nvcc-at-half": (
        "athalf.cu(3): error: no instance of overloaded",
        "    3 |     atomicAdd(x, x[1]);",
        "gpuAtomicAdd",
    ),
    "nvcc-pybind": (
        "mine.cu(2): error: this declaration has no storage class or type specifier (5 errors in all)",
        "    2 |   PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {",
        "include `<torch/extension.h>`",
    ),
    "gcc-pybind": (
        "a.cpp:2:16: error: expected constructor, destructor, or type conversion before ‘(’ token (2 errors",
        "    2 | PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {",
        "include `<torch/extension.h>`",
    ),
    "nvcc-texture": ("tex.cu(1): error: texture is not a template", "    1 | ", "texture object"),
    "nvcc-shfl": ('shfl.cu(2): error: identifier "__shfl_down" is', "    2 | ", "__shfl_down_sync with a mask"),
    "nvcc-thc": ('thc2.cu(2): error: identifier "THCState" is undefined (3 errors', "    2 | ", "removed THCState"),
    "nvcc-prop": ('prop.cu(5): error: class "cudaDeviceProp" has no member', "    5 | ", "no `clockRate` any more"),
    "nvcc-ptxas": ("ptxas /tmp/tmpxft-6_ptx.ptx, line 26; error : Unknown modifier '.instruction'", "", ""),
    "nvcc-warning": ('warnerr.cu(1): error: identifier "nope" is undefined', "", ""),
    "build-multi": ("a.cpp:2:31: error: expected ‘;’ before ‘}’ token", "    2 | int f() { int unused; return 1 }", ""),
    "build-std14": (
        "torch/include/torch/csrc/api/include/torch/all.h:5:2: error: #error C++17 or later compatible compiler is",
        "included in ops.cpp:1",
        "the headers of torch 2.15.0 need C++17: delete `-std=…`",
    ),
    "build-noarch": ("nvcc fatal : Unsupported gpu architecture 'compute_35'", "", "`override_architectures: true`"),
    "build-same": ("ninja: error: build.ninja:31: multiple rules generate", "", "rename one of them"),
    "build-cmk": (
        'CMake Error at CMakeLists.txt:5 (find_package): By not providing "FindEigen3.cmake"',
        "",
        "Eigen3 is in `libeigen3-dev` (Debian, Ubuntu) and `eigen3-devel` (dnf): install it",
    ),
    "build-pyerr": ("setup.py:3: KeyError: 'MY_TOOLKIT'", "", ""),
    "build-nolib": ("/usr/bin/ld: cannot find -lsparsehashnone: No such file or directory", "", ""),
    "build-undef": (
        "ops.cpp:(.text+0xa): undefined reference to `missing(int)' (2 errors in all)",
        "",
        "no file of the extension and no library that it links defines the function",
    ),
}


def read_log(name: str) -> FirstError | None:
    return first_error((LOGS / f"{name}.log").read_text().splitlines(), "/build/src")


@pytest.mark.parametrize("name", EXPECTED)
def test_the_first_error_its_line_and_its_hint(name: str) -> None:
    sentence, line, hint = EXPECTED[name]
    error = read_log(name)
    assert error
    assert error.sentence.startswith(sentence)
    assert len(error.text) <= LONGEST
    assert any(shown.startswith(line) for shown in error.excerpt) if line else not error.excerpt, error.excerpt
    hints = hints_for(error, LOGGED_TORCH, LOGGED_CUDA, container=False)
    assert [hint in given for given in hints] == ([True] if hint else []), hints


def test_every_log_is_expected() -> None:
    assert {path.stem for path in LOGS.glob("*.log")} == set(EXPECTED)


def test_no_hint_names_a_release_newer_than_that_of_the_build() -> None:
    error = read_log("gcc-isvar")
    assert error
    assert hints_for(error, Torch(2, 13, 0), LOGGED_CUDA, container=False) == []


def test_warnings_notes_and_shown_lines_are_no_errors() -> None:
    """A sound build may print all of this."""
    sound = """\
-- Looking for error: found
CMake Warning at CMakeLists.txt:3 (message):
  error: AT_CHECK was not declared in this scope

a.cpp:3:10: warning: #warning "a.cpp:1:1: error: no" [-Wcpp]
    3 | #warning "a.cpp:1:1: error: no" [-Werror]
      |  ^~~~~~~
a.cpp: In function ‘void check_error()’:
a.cpp:9:2: note: ‘AT_CHECK’ was not declared in this scope before C++17
    9 | if (!p) throw std::runtime_error("error: out of memory, Killed, signal 9");
/usr/bin/ld: warning: undefined reference to `x' is ignored
a.cu(12): warning #177-D: variable "error" was declared but never referenced
g++ -Wfatal-errors -Werror=return-type -c error.cpp -o error.o
copying error.py -> build/lib/error.py
ptxas info    : 0 bytes gmem
1 error generated code path was removed
"""
    assert first_error(sound.splitlines(), "/build/src") is None
    assert not was_killed(sound.splitlines())
