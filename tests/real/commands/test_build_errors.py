"""How `build` ends when a compile really fails: gcc compiles each source, through the local executor."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from builder.commands.building.build import run_build
from builder.errors import BuildError, Exit
from builder.log import print_error
from tests.fixtures.small_project import BACKEND, SmallProject, small_project

pytestmark = pytest.mark.usefixtures("headers")

#: Millions of tokens: gcc needs more memory, and more time, than the tests allow it.
_LARGE = "#define C ,\n#define A(x) x x x x x x x x x x\nint a[] = { A(A(A(A(A(A(A(1+1 C))))))) };\n"
_COMPILER = "subprocess.run([*argv,"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallProject]:
    with (
        pytest.MonkeyPatch.context() as monkeypatch,
        small_project(tmp_path_factory.mktemp("errors"), monkeypatch) as ours,
    ):
        yield ours


def failed(project: SmallProject, name: str, source: str | bytes, backend: str = BACKEND) -> BuildError:
    """The error of a build of this C file by this build backend."""
    package = project.recipe(name)
    (package / "_C.c").write_bytes(source if isinstance(source, bytes) else source.encode())
    (package.parent / "backend.py").write_text(backend)
    project.matrix(name)
    [result] = run_build(project.options())[1]
    assert result.exit is Exit.FAILED
    assert isinstance(result.error, BuildError)
    assert result.error.stage == "compile"
    return result.error


def test_the_first_error_after_warnings_is_printed_with_its_line(
    project: SmallProject, capfd: pytest.CaptureFixture[str]
) -> None:
    source = '#warning "error: no error"\nint f(void) { return 1 }\nint g(void) { return h; }\n'
    error = failed(project, "first", source)
    assert error.sentence == "first/_C.c:2:23: error: expected ‘;’ before ‘}’ token (2 errors in all)"
    assert error.excerpt == ("    2 | int f(void) { return 1 }", "      |                       ^~")
    capfd.readouterr()
    print_error(error, who=["first-1.0"])
    lines = capfd.readouterr().err.splitlines()
    assert lines[0] == f"error[compile-failed]: first-1.0: {error.sentence}"
    assert lines[1:3] == [f"  {line}" for line in error.excerpt]
    assert [line.split()[0] for line in lines[3:]] == ["hint:"]


def test_a_missing_header_has_its_package(project: SmallProject) -> None:
    error = failed(project, "header", "#include <glm/glm.hpp>\n")
    assert error.sentence == "header/_C.c:1:10: fatal error: glm/glm.hpp: No such file or directory"
    assert (
        error.hints[0] == "the header glm/glm.hpp is in `libglm-dev` (Debian, Ubuntu) and `glm-devel` (dnf): install it"
    )


@pytest.mark.parametrize(
    ("name", "options", "sentence", "hint"),
    [
        ("symbol", ["-Wl,-z,defs"], "undefined reference to `missing'", "add the file to `sources`"),
        ("library", ["-lnone_of_this_name"], "cannot find -lnone_of_this_name", ""),
        ("strict", ["-Wall", "-Werror"], "error: unused variable ‘unused’", "the source makes warnings errors"),
        ("option", ["-std=c99999"], "error: unrecognized command-line option ‘-std=c99999’", ""),
    ],
)
def test_linkers_and_options(project: SmallProject, name: str, options: list[str], sentence: str, hint: str) -> None:
    backend = BACKEND.replace(_COMPILER, f"{_COMPILER} *{options!r},")
    error = failed(project, name, "int missing(void);\nint f(void) { int unused; return missing(); }\n", backend)
    assert sentence in error.sentence
    assert [hint in line for line in error.hints[:-1]] == ([True] if hint else []), error.hints


def test_colours_and_bytes_that_are_no_text(project: SmallProject) -> None:
    backend = BACKEND.replace(_COMPILER, f"{_COMPILER} '-fdiagnostics-color=always',")
    error = failed(project, "colours", b'char *s = "caf\xe9"; int f(void) { return caf\xe9; }\n', backend)
    assert "\x1b" not in error.sentence + "".join(error.excerpt)
    assert error.sentence.startswith("colours/_C.c:1:")
    assert error.excerpt[0].startswith('    1 | char *s = "caf')


@pytest.mark.parametrize(
    ("name", "limit", "said", "sentence"),
    [
        ("killed", "-t 1", "Killed", "a compiler was killed, probably because memory ran out"),
        ("memory", "-v 300000", "memory", "a compiler had no more memory"),
    ],
)
def test_a_compiler_without_memory(project: SmallProject, name: str, limit: str, said: str, sentence: str) -> None:
    """The kernel ends the one with SIGKILL; the other gets no more memory and says so."""
    limited = f"['sh', '-c', 'ulimit {limit}; exec \"$@\"', 'sh']"
    error = failed(project, name, _LARGE, BACKEND.replace(_COMPILER, f"{_COMPILER.replace('[', f'[*{limited}, ')}"))
    assert error.log
    assert said in error.log.read_text()
    assert error.sentence == sentence
    assert "--jobs 1" in error.hints[0]


def test_an_error_of_the_build_backend_has_its_file_and_line(project: SmallProject) -> None:
    error = failed(project, "python", "", BACKEND.replace("    tag =", "    os.environ['MY_TOOLKIT']\n    tag =", 1))
    line = next(n for n, text in enumerate(BACKEND.splitlines(), 1) if text.startswith("    tag ="))
    assert error.sentence == f"backend.py:{line}: KeyError: 'MY_TOOLKIT'"
    assert error.excerpt == (f"{line:>5} |     os.environ['MY_TOOLKIT']",)


def test_a_missing_module_has_the_requirement(project: SmallProject) -> None:
    error = failed(project, "module", "", BACKEND.replace("    tag =", "    import yaml.none\n    tag =", 1))
    assert "ModuleNotFoundError: No module named 'yaml'" in error.sentence
    assert error.hints[0] == "add `PyYAML` to `build_requires` in the recipe: the build needs this module"


def test_a_backend_that_only_says_why(project: SmallProject) -> None:
    backend = BACKEND.replace("    tag =", "    raise SystemExit('Install the frobnicator first.')\n    tag =", 1)
    error = failed(project, "says", "", backend)
    assert error.sentence.endswith(": Install the frobnicator first.")
    assert Path(error.hints[-1].rpartition(" ")[2]).is_file()
