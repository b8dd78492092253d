"""The packed gate has all it needs and no more; the judge imports no module and runs no code of the wheel."""

import ast
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import builder
import builder.gate
from builder.gate.imports.packages import NeedsExtensionError, Stub, needs_extension
from builder.gate.outcome import Spec
from builder.gate.pack import pack, pack_file

SPEC = Spec("ops", ["ops"], ["numpy"], {"_C": ["CPU"]})
PACKAGE = Path(builder.gate.__file__).parent


@pytest.fixture
def cases(tmp_path: Path) -> Path:
    folder = tmp_path / "recipe"
    (folder / "references" / "__pycache__").mkdir(parents=True)
    (folder / "references" / "plain.py").write_text("X = 1\n")
    (folder / "references" / "__pycache__" / "plain.pyc").write_bytes(b"")
    (folder / "cases.py").write_text("CASES = []\n")
    (folder / "extension.yaml").write_text("name: ops\n")
    return folder / "cases.py"


def test_a_folder_contains_the_gate_the_spec_and_the_cases(cases: Path, tmp_path: Path) -> None:
    assert not (pack(tmp_path / "without", SPEC, None) / "cases.py").exists()
    folder = pack(tmp_path / "gate", SPEC, cases)
    assert Spec(**json.loads((folder / "spec.json").read_text())) == SPEC
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert found == {
        "__main__.py",
        "spec.json",
        "cases.py",
        "references/plain.py",
        "builder/__init__.py",
        *(f"builder/gate/{path.relative_to(PACKAGE)}" for path in PACKAGE.rglob("*.py")),
    }


def test_one_file_contains_the_same(cases: Path, tmp_path: Path) -> None:
    file = pack_file(tmp_path / "gate.pyz", SPEC, cases)
    folder = pack(tmp_path / "gate", SPEC, cases)
    with zipfile.ZipFile(file) as packed:
        names = {name for name in packed.namelist() if not name.endswith("/")}
    assert names == {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert file.read_bytes().startswith(b"#!/usr/bin/env python3\n")


def run(packed: Path, *words: str, before: str = "") -> tuple[int, str]:
    """Run a packed gate after some statements; the exit status and what it says on stderr."""
    code = f"import runpy, sys; sys.argv[1:] = {list(words)!r}; {before or 'pass'}"
    code += f"; runpy.run_path({str(packed)!r}, run_name='__main__')"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


@pytest.mark.parametrize("one_file", [False, True])
def test_it_runs_from_anywhere_with_any_python(one_file: bool, cases: Path, tmp_path: Path) -> None:
    packed = (pack_file if one_file else pack)(tmp_path / "packed", SPEC, cases)
    assert run(packed, "--help") == (0, "")


def test_a_python_that_is_too_old_is_told_in_one_sentence(tmp_path: Path) -> None:
    packed = pack_file(tmp_path / "gate.pyz", SPEC, None)
    status, said = run(packed, before="sys.version_info = (3, 8, 18)")
    assert (status, said.count("\n")) == (2, 1)
    assert "is Python 3.8; use the Python of the environment" in said


def test_a_file_that_cannot_be_written_is_told_before_the_checks_run(tmp_path: Path) -> None:
    status, said = run(pack_file(tmp_path / "gate.pyz", SPEC, None), "--answer", str(tmp_path / "none" / "file"))
    assert status == 2
    assert said.endswith(
        f"{tmp_path}/none/file cannot be written: its folder does not exist, or you may not write there\n"
    )


def test_a_python_without_torch_or_the_wheel_is_named(tmp_path: Path) -> None:
    packed = pack_file(tmp_path / "gate.pyz", Spec("none", ["no_such_module"], has_cases=False), None)
    _, said = run(packed, "--check", "ops")
    assert "has no module no_such_module: use the Python in which torch and the wheel are installed\n" in said


def test_an_import_error_names_its_cause() -> None:
    """In a Python of its own, because the module imports torch."""
    code = """
import sys, unittest.mock
sys.modules["torch"] = unittest.mock.MagicMock()
from builder.gate.discover import one_line
error = OSError("cannot load _C.so")
error.__cause__ = OSError("undefined symbol: f")
print(one_line(error))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "OSError: cannot load _C.so, because of OSError: undefined symbol: f\n"


def test_it_imports_only_torch_and_the_standard_library() -> None:
    offenders = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                allowed = name.split(".")[0] in {*sys.stdlib_module_names, "torch"} or name.startswith("builder.gate")
                offenders += [] if allowed else [f"{path.name}: {name}"]
    assert offenders == []


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Packages: the wheel `ops` with a hook, a `numpy` and a part of the folder `shared`; and `other`."""
    hostile = "import os\nos.write(1, b'executed')\n"
    files = {
        "ops/__init__.py": hostile,
        "ops.pth": "import ops\n",
        "other.start": "ops:main\n",
        "sitecustomize.py": hostile,
        "numpy.py": hostile,
        "shared/ops.py": hostile,
        "deep/hidden.py": hostile,
        "paths.pth": "shared/../deep\n",
    }
    info = {"ops-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: ops\nVersion: 1.0\n"}
    record = "".join(f"{name},,\n" for name in [*files, *info, "ops-1.0.dist-info/RECORD"])
    more = {"ops-1.0.dist-info/RECORD": record, "other.py": "good = 1\n", "shared/other.py": "good = 1\n"}
    more |= {"deeper/found.py": "", "more.pth": "# a comment\ndeeper\nimport ops\n/nonexistent\n"}
    for name, text in {**files, **info, **more}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


MISSING = "try: import {}\nexcept ModuleNotFoundError as error: print(error.name)"
STUBS = "import ops, ops.more.still, shared.ops; from ops.sub import scatter; print(type(scatter).__name__)"


@pytest.mark.parametrize(
    ("code", "printed"),
    [
        pytest.param("import other, shared.other; print(other.good, shared.other.good)", "1 1", id="other packages"),
        pytest.param(STUBS, "Stub", id="modules of the wheel are stubs"),
        pytest.param(MISSING.format("numpy"), "numpy", id="another package in the wheel is not found"),
        pytest.param(MISSING.format("hidden"), "hidden", id="a file of the wheel is known by every path"),
        pytest.param("import found; print('found')", "found", id="a .pth file adds folders only"),
    ],
)
def test_what_the_judge_imports(site: Path, code: str, printed: str) -> None:
    program = (
        f"import sys; sys.path[:0] = [{str(Path(builder.__file__).parents[1])!r}]\n"
        "from builder.gate.imports.packages import *\n"
        f"import site; site.getsitepackages = lambda *_: [{str(site)!r}]\n"
        f"add_packages()\nWithoutExtension(['ops', 'shared.ops'], files_of('ops')).install()\n{code}\n"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.returncode) == (printed, 0), done.stderr


def test_the_use_of_a_stub_says_that_the_case_needs_the_extension() -> None:
    stub = Stub("ops.scatter")
    for use in (lambda: stub(1), lambda: stub.other, lambda: [*stub], lambda: bool(stub), lambda: stub + 1):
        with pytest.raises(NeedsExtensionError) as raised:
            use()
        outer = RuntimeError("the reference raises")
        outer.__cause__ = raised.value
        assert needs_extension(outer)
    assert not needs_extension(RuntimeError("no"))
