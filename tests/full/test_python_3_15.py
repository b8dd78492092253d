"""What Python 3.15 imports, and pip and uv install: names of modules, abi3t with and without a GIL, `.start` files."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

import builder
from builder.diagnosis.known_errors import reports
from builder.gate.imports.extension_modules import MODULE_FILE
from builder.matrix.axes import Python
from builder.proofs.static.stable_abi import check_abi3
from builder.proofs.static.tags import check_modules
from builder.wheelfile.compatibility import finds
from builder.wheelfile.facts import read_facts
from builder.wheels.repair.relabel import Label
from builder.wheels.repair.repair import repair
from builder.wheels.toolchain.machine import find_python
from builder.wheels.toolchain.uv import find_uv
from tests.conftest import ROOT, Farm, lacking, run
from tests.unit.loopback import w0
from tests.unit.proofs.make import claim

pytestmark = [pytest.mark.network, pytest.mark.slow]

NEW = Python(3, 15)
PACKAGES = "python3.15,python3.15-dev,python3.15-venv,gcc,ca-certificates"
DEBIAN = "deb http://deb.debian.org/debian {} main"
OLD_FORM = """\
#include <Python.h>
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "m", 0, -1, 0};
PyMODINIT_FUNC PyInit_m(void) { return PyModule_Create(&module); }
"""
#: PEP 793: slots instead of a PyModuleDef, which abi3t does not have.
NEW_FORM = """\
#include <Python.h>
PyABIInfo_VAR(abi_info);
static PySlot slots[] = {PySlot_STATIC_DATA(Py_mod_abi, &abi_info), PySlot_END};
PyMODEXPORT_FUNC PyModExport_m(void) { return slots; }
"""
SETUP = """\
from setuptools import Extension, setup

macros = [("Py_LIMITED_API", "0x030a0000")]
extension = Extension("demo.m", ["m.c"], py_limited_api=True, define_macros=macros)
setup(name="demo", version="1.0", packages=["demo"], ext_modules=[extension],
      options={"bdist_wheel": {"py_limited_api": "cp310"}})
"""

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The root file system of Debian with Python 3.15, pip, setuptools and uv in the environment /venv."""
    if os.geteuid() or not shutil.which("mmdebstrap"):
        lacking("a Debian with Python 3.15 needs root and mmdebstrap")
    kept = os.environ.get("PYTHON_3_15_ROOT", "")
    folder = Path(kept) if kept else tmp_path_factory.mktemp("debian") / "root"
    if not (folder / "venv").exists():
        words = ["mmdebstrap", "--variant=apt", f"--include={PACKAGES}", "sid", str(folder)]
        words += ["--aptopt=Acquire::Check-Valid-Until false", *(DEBIAN.format(one) for one in ("sid", "experimental"))]
        subprocess.run(words, check=True)
        wheels = folder / "wheels"
        download = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(wheels), "pip", "setuptools"]
        subprocess.run(download, check=True)
        shutil.copy(find_uv(), folder / "usr/bin/uv")
        subprocess.run(["chroot", folder, "python3.15", "-m", "venv", "/venv"], check=True)
        argv = ["/venv/bin/pip", "install", "-q", "--no-index", "--find-links=/wheels", "-U", "pip", "setuptools"]
        subprocess.run(["chroot", folder, *argv], check=True)
    yield folder
    if not kept:
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def new(root: Path) -> Run:
    """Runs a program in the root file system, with the Python of /venv as `python`."""
    return partial(inside, root)


def inside(root: Path, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    path = "/venv/bin:/usr/bin:/bin"
    argv = ["chroot", str(root), "/usr/bin/env", "-i", f"PATH={path}", "HOME=/root", "VIRTUAL_ENV=/venv", *words]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def olds() -> dict[Python, str]:
    """The interpreters of this machine with Python 3.10 to 3.14."""
    found = {}
    for minor in range(10, 15):
        if interpreter := find_python(Python(3, minor)):
            found[Python(3, minor)] = str(interpreter.path)
    assert found
    return found


@pytest.fixture(scope="module")
def modules(root: Path, new: Run) -> dict[str, bytes]:
    """The module `m` for Python's stable ABI since 3.10, and for abi3t."""
    found = {}
    flags = ("-shared", "-fPIC", "-O1", "-I/usr/include/python3.15")
    for name, source, macro in (
        ("abi3", OLD_FORM, "Py_LIMITED_API=0x030a0000"),
        ("abi3t", NEW_FORM, "Py_TARGET_ABI3T=0x030f0000"),
    ):
        (root / "m.c").write_text(source)
        new("gcc", *flags, f"-D{macro}", "/m.c", "-o", "/m.so")
        found[name] = (root / "m.so").read_bytes()
    return found


def test_names_that_import_looks_for(
    root: Path, new: Run, olds: dict[Python, str], modules: dict[str, bytes], tmp_path: Path
) -> None:
    """`finds` says what each Python does."""
    kinds = ["", ".abi3", ".abi3t", ".cpython-312", ".cpython-315", ".cpython-315t"]
    triplets = ["", "-x86_64-linux-gnu", "-aarch64-linux-gnu", "-x86_64-linux-musl"]
    for kind in kinds:
        for triplet in triplets if kind else [""]:
            name = f"m{kind}{triplet}.so"
            if not triplet and "cpython" in kind:
                continue
            file = MODULE_FILE.fullmatch(name)
            assert file is not None
            for python, interpreter in {NEW: "", **olds}.items():
                folder = root / "names" if python == NEW else tmp_path / "names"
                folder.mkdir(exist_ok=True)
                (folder / name).write_bytes(modules["abi3"])
                path = "/names" if python == NEW else str(folder)
                words = ["-I", "-c", f"import sys; sys.path.insert(0, {path!r}); import m"]
                if python == NEW:
                    done = new("python", *words, check=False)
                else:
                    done = subprocess.run([interpreter, *words], capture_output=True, text=True, check=False)
                assert (done.returncode == 0) == finds(python, file, "x86_64"), (name, python, done.stderr)
                (folder / name).unlink()


def install_and_import(root: Path, new: Run, wheel: Path, python: Python, olds: dict[Python, str], folder: Path) -> str:
    """Install a wheel with pip and with uv, import it after each, and return the errors."""
    errors = []
    for number, tool in enumerate(("pip", "uv")):
        target = folder / f"{wheel.stem}-{python}-{number}"
        if python == NEW:
            shutil.copy(wheel, root / wheel.name)
            start = ["uv", "pip"] if tool == "uv" else ["python", "-m", "pip"]
            new(*start, "install", "-q", "--no-index", "--no-deps", "--target", f"/{target.name}", f"/{wheel.name}")
            done = new(
                "python", "-I", "-c", f"import sys; sys.path.insert(0, '/{target.name}'); import demo.m", check=False
            )
        else:
            start = [str(find_uv()), "pip", "install", "--python", olds[python]]
            if tool == "pip":
                start = [sys.executable, "-m", "pip", "--python", olds[python], "install"]
            subprocess.run([*start, "-q", "--no-index", "--no-deps", "--target", str(target), str(wheel)], check=True)
            words = [olds[python], "-I", "-c", f"import sys; sys.path.insert(0, {str(target)!r}); import demo.m"]
            done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            errors.append(done.stderr.strip().splitlines()[-1])
    assert len(errors) in (0, 2), errors
    return errors[0] if errors else ""


def test_a_wheel_of_setuptools_for_every_python(root: Path, new: Run, olds: dict[Python, str], tmp_path: Path) -> None:
    """The raw wheel fails the check and the import; the repaired one passes both."""
    shutil.rmtree(root / "demo", ignore_errors=True)
    (root / "demo/demo").mkdir(parents=True)
    for name, text in {"setup.py": SETUP, "m.c": OLD_FORM, "demo/__init__.py": ""}.items():
        (root / "demo" / name).write_text(text)
    new("python", "-m", "pip", "wheel", "-q", "--no-index", "--no-build-isolation", "-w", "/demo/dist", "/demo")
    (raw,) = (root / "demo/dist").glob("*.whl")
    assert raw.name.startswith("demo-1.0-cp310-abi3-linux")
    assert "demo/m.abi3-x86_64-linux-gnu.so" in read_facts(raw).files
    assert check_modules(read_facts(raw)).verdict == "failed"
    assert not install_and_import(root, new, raw, NEW, olds, tmp_path)
    for python in olds:
        assert "No module named 'demo.m'" in install_and_import(root, new, raw, python, olds, tmp_path)
    log = tmp_path / "log"
    out = tmp_path / "out"
    wheel = repair(raw, out, Label("cu130", ""), provided=frozenset(), log=log)
    assert check_modules(read_facts(wheel)).verdict == "passed"
    for python in (NEW, *olds):
        assert not install_and_import(root, new, wheel, python, olds, tmp_path)


def test_a_wheel_for_abi3t(root: Path, new: Run, modules: dict[str, bytes], tmp_path: Path) -> None:
    """Python 3.15 with a GIL installs and imports it; the checks pass it, and fail the tag of setuptools 84."""
    files = {"demo/__init__.py": b"from . import m\n", "demo/m.abi3t.so": modules["abi3t"]}
    wheel = w0(tmp_path, "demo", "1.0", "cp315-abi3.abi3t-linux_x86_64", files)
    facts = read_facts(wheel)
    assert facts.libraries[0].is_module
    assert check_modules(facts).verdict == "passed"
    proof = check_abi3(facts, claim())
    assert proof is not None
    assert proof.verdict == "passed", proof.reason
    assert not install_and_import(root, new, wheel, NEW, {}, tmp_path)
    assert check_modules(read_facts(w0(tmp_path, "demo", "1.0", "cp310-abi3.abi3t-linux_x86_64", files))).verdict == (
        "failed"
    )
    (root / "old.c").write_text(OLD_FORM)
    done = new(
        "gcc", "-fsyntax-only", "-I/usr/include/python3.15", "-DPy_TARGET_ABI3T=0x030f0000", "/old.c", check=False
    )
    assert done.returncode


def test_the_error_of_a_module_whose_function_has_another_name(
    root: Path, new: Run, olds: dict[Python, str], modules: dict[str, bytes], tmp_path: Path
) -> None:
    """Python before 3.15 names one function, 3.15 two; both have a hint."""
    for folder in (root / "other", tmp_path / "other"):
        folder.mkdir(exist_ok=True)
        (folder / "n.so").write_bytes(modules["abi3"])
    code = "import sys; sys.path.insert(0, '{}'); import n"
    errors = [new("python", "-c", code.format("/other"), check=False).stderr]
    for interpreter in olds.values():
        words = [interpreter, "-c", code.format(tmp_path / "other")]
        errors.append(subprocess.run(words, capture_output=True, text=True, check=False).stderr)
    for error in errors:
        found = reports("no-module-function", error)
        assert found is not None, error
        assert found["function"] == "PyInit_n"


def test_the_judge_executes_no_code_of_the_wheel(root: Path, new: Run) -> None:
    """Lines of `.pth` files and functions of `.start` files (PEP 829) run in a normal start, and not in the judge."""
    site = root / "site"
    shutil.rmtree(site, ignore_errors=True)
    (site / "ops").mkdir(parents=True)
    (site / "ops/__init__.py").write_text("print('imported')\ndef main(): print('started')\n")
    (site / "ops.pth").write_text("import ops\n/proc/../site/deep\n")
    (site / "other.start").write_text("ops:main\n")
    (site / "deep").mkdir()
    shutil.rmtree(root / "gate", ignore_errors=True)
    shutil.copytree(Path(builder.__file__).parent, root / "gate/builder", ignore=shutil.ignore_patterns("__pycache__"))
    start = "import sys; sys.path[:0] = ['/gate']\nimport site; site.getsitepackages = lambda *_: ['/site']\n"
    judge = f"{start}from builder.gate.imports.packages import *\nadd_packages()\nprint('/site/deep' in sys.path)\n"
    assert new("python", "-I", "-S", "-c", f"{start}site.main()").stdout.split() == ["imported", "started"]
    assert new("python", "-I", "-S", "-c", judge).stdout.split() == ["True"]
    both = f"{judge}execute_startup_code()"
    assert re.findall(r"\w+ed\b", new("python", "-I", "-S", "-c", both).stdout) == ["imported", "started"]


PYTHONS = (Python(3, 15), Python(3, 15, free_threaded=True))
MATRIX = "{torch: [2.15], cuda: [13.2], python: [3.13, 3.15, 3.15t], archs: [9.0], extensions: [ms_deform_attn]}\n"
#: Prints whether the GIL is off after the import, and a value of the op.
USE = """\
import sys, torch
from ms_deform_attn import ms_deform_attn
one = torch.ones
points, level = one(1, 1, 1, 1, 1, 2) / 2, torch.tensor([[2, 2]])
out = ms_deform_attn(one(1, 4, 1, 8), level, torch.tensor([0]), points, one(1, 1, 1, 1, 1))
print(not sys._is_gil_enabled(), out.mean().item())
"""


def test_one_wheel_for_both_pythons(farm: Farm, store: Path, tmp_path: Path) -> None:
    """pip and uv install in 3.15 and 3.15t the wheel that was tested there; the op runs, and the GIL stays off."""
    found = {python: one.path for python in PYTHONS if (one := find_python(python))}
    if len(found) < len(PYTHONS):
        lacking("Python 3.15 and 3.15t")
    shutil.copytree(ROOT / "extensions/ms_deform_attn", tmp_path / "ms_deform_attn")
    (tmp_path / "matrix.yaml").write_text(MATRIX)
    for words in (["build"], ["publish", "--to", "index", "--require", "cpu"]):
        farm(*words, "--store", store, cwd=tmp_path).ok()
    tags = {wheel.stem.split("-", 2)[-1].rsplit("-", 1)[0] for wheel in (tmp_path / "dist").glob("*.whl")}
    assert tags == {"cp310-abi3", "cp315-abi3.abi3t"}
    index = f"{(tmp_path / 'index').as_uri()}/simple"
    for python, interpreter in found.items():
        place = tmp_path / f"env-{python}"
        run(find_uv(), "venv", "-q", "--seed", "--python", interpreter, place)
        here = place / "bin/python"
        run(find_uv(), "pip", "install", "-q", "--python", here, "torch==2.15.0", "numpy")
        uv: list[str | Path] = [find_uv(), "pip", "install", "--reinstall", "--python", here]
        pip: list[str | Path] = [here, "-m", "pip", "install"]
        for start in (pip, uv):
            run(*start, "-q", "--no-deps", "--index-url", index, "ms_deform_attn").ok()
            (record,) = place.glob("lib/*/site-packages/ms_deform_attn-*.dist-info/WHEEL")
            assert "Tag: cp315-abi3t-" in record.read_text()
            done = run(here, "-c", USE).ok()
            assert done.out.split() == [str(python.free_threaded), "1.0"]
