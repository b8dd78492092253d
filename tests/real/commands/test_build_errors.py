"""`build` of folders: a recipe for a new source, files beside it, secrets in the output, compiles that fail."""

import hashlib
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builder.__main__ import run_command
from builder.commands.building import story
from builder.commands.building.build import run_build
from builder.errors import BuildError, Exit
from builder.log import print_error
from builder.proof import Check, Verdict
from builder.recipes.cures import PATCH
from builder.wheels import make
from builder.wheels.make import compile_wheel
from tests.fixtures.small_project import BACKEND, MODULE, SmallProject, small_project
from tests.unit.loopback import PYTHON

pytestmark = pytest.mark.usefixtures("headers")


@pytest.fixture(scope="module")
def folder_project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallProject]:
    with (
        pytest.MonkeyPatch.context() as monkeypatch,
        small_project(tmp_path_factory.mktemp("folder"), monkeypatch) as ours,
    ):
        ours.recipe("tiny")
        ours.matrix("tiny")
        yield ours


def test_a_log_that_grows_in_the_source_folder_is_named_and_does_not_fail_the_build(
    folder_project: SmallProject, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    log = folder_project.root / "tiny" / "src" / "build.log"

    def growing(*args: Any, **kwargs: Any) -> Any:
        log.write_text("one more line\n")
        return compile_wheel(*args, **kwargs)

    monkeypatch.setattr(make, "compile_wheel", growing)
    ((first,), (second,)) = (run_build(folder_project.options())[1] for _ in range(2))
    assert (first.exit, first.error, first.reused) == (Exit.OK, None, False)
    assert "these files changed since the last wheel: build.log" in capfd.readouterr().err
    assert (second.exit, second.reused) == (Exit.OK, False), "the log is a source file, and it changed"
    assert run_build(folder_project.options())[1][0].reused


def test_a_new_dist_is_no_source_of_the_folder_around_it(folder_project: SmallProject) -> None:
    run_build(folder_project.options())
    assert Path(folder_project.root, "dist", ".gitignore").read_text() == "*\n"


def test_a_slow_build_names_the_header_that_a_cuda_file_does_not_need(
    folder_project: SmallProject, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder_project.root / "tiny" / "src" / "kernel.cu").write_text("#include <torch/extension.h>\n")
    monkeypatch.setattr(story, "_SLOW", 0)
    run_build(folder_project.options())
    said = " ".join(capfd.readouterr().err.split())
    assert "s: kernel.cu includes <torch/extension.h>" in said
    assert "<torch/types.h> is enough for this file" in said


@pytest.fixture
def new_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallProject]:
    with small_project(tmp_path / "project", monkeypatch) as made:
        yield made


@pytest.mark.usefixtures("headers")
def test_build_source_adds_and_builds(
    new_project: SmallProject, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    package = new_project.recipe("small_ops", source=MODULE.format(answer=1))
    (package.parent.parent / "extension.yaml").unlink()
    (package.parent / "pyproject.toml").write_text(
        (package.parent / "pyproject.toml").read_text() + '[project]\nname = "small-ops"\nversion = "1.0"\n'
    )
    (new_project.root / "matrix.yaml").write_text(
        f"torch: [2.11.0]\ncuda: [13.0]\npython: [{PYTHON}]\nextensions: []\n"
        f"torch_index: {new_project.index.torch_index}\n"
    )
    monkeypatch.chdir(new_project.root)
    argv = ["build", "small_ops/src", "--executor", "local", "--store", str(new_project.store)]
    monkeypatch.setattr(sys, "argv", ["buildfarm", *argv, "--arch", "bad"])
    assert run_command() == Exit.USAGE
    assert not (package / "extension.yaml").exists(), "a recipe is written only for a valid command line"
    monkeypatch.setattr(sys, "argv", ["buildfarm", *argv])
    code = run_command()
    out, err = capfd.readouterr()
    assert "wrote small_ops/src/extension.yaml" in err
    assert "no CUDA file" in err
    assert (code, len(list((new_project.root / "dist").glob("*.whl")))) == (0, 1), err
    assert "1 cell" in out or "small_ops-1.0" in out


SECRET = "hunter2secret"


@pytest.mark.parametrize("broken", [False, True])
def test_a_run_keeps_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], broken: bool
) -> None:
    with small_project(tmp_path / "project", monkeypatch) as project:
        backend = project.recipe(
            "steady", more=f"env: {{MIRROR: 'https://me:{SECRET}@host/x?token={SECRET}'}}\n"
        ).parent
        text = (backend / "backend.py").read_text().replace('f"{NAME}/env.txt"', '# f"{NAME}/env.txt"')
        said = "".join(
            f"print({line!r}, flush=True)\n"
            for line in (
                f"fetching https://me:{SECRET}@host/x.git",
                f"GET https://host/x?access_token={SECRET}",
                f"GET https://host/t/{SECRET}/x",
                f"Authorization: Bearer {SECRET}",
            )
        )
        (backend / "backend.py").write_text(said + text + ("raise SystemExit(1)\n" if broken else ""))
        matrix = project.matrix("steady")
        matrix.write_text(matrix.read_text().replace("http://", f"http://me:{SECRET}@"))
        words = ["build", "--matrix", str(matrix), "--executor", "local", "--store", str(project.store)]
        words += ["--dist", str(project.root / "dist"), "--verbose", "--index-url", f"https://me:{SECRET}@host"]
        monkeypatch.setattr(sys, "argv", ["buildfarm", *words[:-2]])
        code = run_command()
        out, err = capsys.readouterr()
        log = (project.store / "logs").glob("steady*.log")
        assert "GET https://host/x?access_token=" in next(log).read_text()
        assert code == int(broken), err
        assert SECRET not in out + err
        files = [path for folder in (project.store, project.root / "dist") for path in folder.rglob("*")]
        assert [path for path in files if path.is_file() and SECRET.encode() in path.read_bytes()] == []


#: Millions of tokens: gcc needs more memory, and more time, than the tests allow it.
_LARGE = "#define C ,\n#define A(x) x x x x x x x x x x\nint a[] = { A(A(A(A(A(A(A(1+1 C))))))) };\n"
_COMPILER = "subprocess.run([*argv,"


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallProject]:
    with (
        pytest.MonkeyPatch.context() as monkeypatch,
        small_project(tmp_path_factory.mktemp("errors"), monkeypatch) as ours,
    ):
        yield ours


def failed(failing: SmallProject, name: str, source: str | bytes, backend: str = BACKEND) -> BuildError:
    """The error of a build of this C file by this build backend."""
    package = failing.recipe(name)
    (package / "_C.c").write_bytes(source if isinstance(source, bytes) else source.encode())
    (package.parent / "backend.py").write_text(backend)
    failing.matrix(name)
    [result] = run_build(failing.options())[1]
    assert result.exit is Exit.FAILED
    assert isinstance(result.error, BuildError)
    assert result.error.stage == "compile"
    return result.error


def test_the_first_error_after_warnings_is_printed_with_its_line(
    failing: SmallProject, capfd: pytest.CaptureFixture[str]
) -> None:
    source = '#warning "error: no error"\nint f(void) { return 1 }\nint g(void) { return h; }\n'
    error = failed(failing, "first", source)
    assert error.sentence == "first/_C.c:2:23: error: expected ‘;’ before ‘}’ token (2 errors in all)"
    assert error.excerpt == ("    2 | int f(void) { return 1 }", "      |                       ^~")
    capfd.readouterr()
    print_error(error, who=["first-1.0"])
    lines = capfd.readouterr().err.splitlines()
    assert lines[0] == f"error[compile-failed]: first-1.0: {error.sentence}"
    assert lines[1:3] == [f"  {line}" for line in error.excerpt]
    assert [line.split()[0] for line in lines[3:]] == ["hint:"]


@pytest.mark.parametrize(
    ("name", "limit", "said", "sentence"),
    [
        ("killed", "-t 1", "Killed", "a compiler was killed, probably because memory ran out"),
        ("memory", "-v 300000", "memory", "a compiler had no more memory"),
    ],
)
def test_a_compiler_without_memory(failing: SmallProject, name: str, limit: str, said: str, sentence: str) -> None:
    """The kernel ends the one with SIGKILL; the other gets no more memory and says so."""
    limited = f"['sh', '-c', 'ulimit {limit}; exec \"$@\"', 'sh']"
    error = failed(failing, name, _LARGE, BACKEND.replace(_COMPILER, f"{_COMPILER.replace('[', f'[*{limited}, ')}"))
    assert error.log
    assert said in error.log.read_text()
    assert error.sentence == sentence
    assert "--jobs 1" in error.hints[0]


OLD = MODULE.format(answer="AT_CHECK + *std::make_unique<long>(1)").replace(
    "#include <Python.h>", "#include <Python.h>\n#define TORCH_CHECK 41"
)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallProject]:
    """A project with the recipe of a source distribution, which the store has."""
    with small_project(tmp_path / "project", monkeypatch) as made:
        package = made.recipe("old_ops", source=OLD)
        tree = package.parent
        (tree / "backend.py").write_text(BACKEND.replace('"-shared",', '"-shared", "-xc++",'))
        with tarfile.open(archive := tmp_path / "old_ops-1.0.tar.gz", "w:gz") as tar:
            tar.add(tree, "old_ops-1.0")
        digest = hashlib.sha256(archive.read_bytes()).hexdigest()
        kept = made.store / "sources/sdists" / digest
        kept.mkdir(parents=True)
        archive.rename(kept / archive.name)
        recipe = tree.parent / "extension.yaml"
        source = f"{{sdist: old_ops, version: 1.0, sha256: {digest}}}"
        recipe.write_text(recipe.read_text().replace("{path: src}", source))
        made.matrix("old_ops")
        yield made


def test_an_old_source_becomes_a_wheel(project: SmallProject, capfd: pytest.CaptureFixture[str]) -> None:
    [failed] = run_build(replace(project.options(), no_cures=True))[1]
    assert "AT_CHECK" in str(failed.error)
    assert not (project.root / "old_ops" / PATCH).exists()
    before = (project.root / "old_ops/src/old_ops/_C.c").read_bytes()
    [built] = run_build(project.options())[1]
    cured = [line.partition(" cured: ")[2] for line in capfd.readouterr().err.splitlines() if " cured: " in line]
    assert built.stored, built.error
    assert cured == ["old_ops/_C.c: AT_CHECK → TORCH_CHECK (torch 1.5 removed it)", "old_ops/_C.c: #include <memory>"]
    assert (project.root / "old_ops/src/old_ops/_C.c").read_bytes() == before
    [again] = run_build(project.options())[1]
    assert again.reused
    assert again.stored
    assert again.stored.digest == built.stored.digest
    compared = [[proof for proof in each.proofs if proof.check is Check.CURES] for each in (built, again)]
    assert compared[0] == compared[1]
    not_seen = "old_ops/_C.c cannot be compared with the original: its compile was not seen"  # one call also links it
    assert [(proof.verdict, proof.reason) for proof in compared[0]] == [(Verdict.NOT_RUN, not_seen)]
