"""A small project to build: extensions in C with their own build backend, compiled by gcc, and a tiny fake torch."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from builder.cli.options import ExecutorName
from builder.commands.building.build import BuildOptions
from builder.matrix.axes import Python
from tests.unit import loopback
from tests.unit.canned_gate import can_gate

PYTHON = Python(sys.version_info.major, sys.version_info.minor)

#: A minimal build backend: one C file, one package, the tag of the Python that runs it.
BACKEND = '''\
"""Compiles <name>/_C.c with CC and zips the package."""
import os, subprocess, sys, sysconfig, zipfile
from pathlib import Path

NAME, VERSION = (Path("PKG").read_text().split())

def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    library = f"{NAME}/_C" + sysconfig.get_config_var("EXT_SUFFIX")
    argv = [os.environ["CC"], "-shared", "-fPIC", "-I", sysconfig.get_path("include")]
    if subprocess.run([*argv, f"{NAME}/_C.c", "-o", library]).returncode:
        raise SystemExit("the compiler failed")
    info = f"{NAME}-{VERSION}.dist-info"
    wheel = f"{NAME}-{VERSION}-{tag}-{tag}-linux_x86_64.whl"
    files = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\\nName: {NAME}\\nVersion: {VERSION}\\nRequires-Dist: torch\\n",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\\nRoot-Is-Purelib: false\\nTag: {tag}-{tag}-linux_x86_64\\n",
        f"{NAME}/__init__.py": Path(f"{NAME}/__init__.py").read_bytes(),
        library: Path(library).read_bytes(),
        f"{NAME}/env.txt": "\\n".join(f"{k}={v}" for k, v in sorted(os.environ.items())),
    }
    record = "".join(f"{name},,\\n" for name in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(Path(wheel_directory) / wheel, "w") as archive:
        for name, content in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(name, content)
    return wheel
'''
PROJECT = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
MODULE = """\
#include <Python.h>
static PyObject *answer(PyObject *self, PyObject *args) {{ return PyLong_FromLong({answer}); }}
static PyMethodDef methods[] = {{{{"answer", answer, METH_NOARGS, ""}}, {{0}}}};
static struct PyModuleDef module = {{PyModuleDef_HEAD_INIT, "_C", 0, -1, methods}};
PyMODINIT_FUNC PyInit__C(void) {{ return PyModule_Create(&module); }}
"""
RECIPE = """\
name: {name}
version: 1.0
source: {{path: src}}
abi: cpython
cuda: {cuda}
imports: [{name}]
memory_per_job: 16MiB
{more}"""


@dataclass(frozen=True)
class SmallProject:
    """The folder of the project, and the package index with its torch."""

    root: Path
    index: loopback.PackageIndex

    def recipe(self, name: str, *, source: str | None = None, cuda: str = "optional", more: str = "") -> Path:
        """Write an extension with `source` as C file and `more` as further lines of the recipe; return its package."""
        package = self.root / name / "src" / name
        package.mkdir(parents=True)
        (self.root / name / "extension.yaml").write_text(RECIPE.format(name=name, cuda=cuda, more=more))
        (package.parent / "pyproject.toml").write_text(PROJECT)
        (package.parent / "backend.py").write_text(BACKEND)
        (package.parent / "PKG").write_text(f"{name} 1.0")
        (package / "__init__.py").write_text("from ._C import answer\n")
        (package / "_C.c").write_text(MODULE.format(answer=42) if source is None else source)
        return package

    @property
    def store(self) -> Path:
        """Next to the project: its own path may contain a space, and the path of a store may not."""
        return self.root.with_name(f"{self.root.name.replace(' ', '-')}-store")

    def matrix(self, *names: str, python: str = "") -> Path:
        """Write matrix.yaml for these extensions."""
        path = self.root / "matrix.yaml"
        path.write_text(
            f"torch: [2.11.0]\ncuda: [13.0]\npython: [{python or PYTHON}]\n"
            f"extensions: [{', '.join(names)}]\ntorch_index: {self.index.torch_index}\n"
        )
        return path

    def options(self) -> BuildOptions:
        """The options of `buildfarm build` for this project."""
        return BuildOptions(
            matrix=self.root / "matrix.yaml",
            executor=ExecutorName.LOCAL,
            store=self.store,
            dist=self.root / "dist",
            jobs=2,
        )


@contextlib.contextmanager
def small_project(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallProject]:
    """Serve an index with torch and empty build tools, and set up a fake CUDA toolkit that reports 13.0."""
    with loopback.served(root / "index") as index:
        loopback.only(index, root / "uv-cache", monkeypatch)
        index.add_torch("2.11.0", "13.0", libraries=loopback.torch_libraries(root / "torch-lib"))
        for name in ("ninja", "setuptools", "wheel", "pip", "numpy"):
            index.add(name, "80.0")
        monkeypatch.setenv("CUDA_HOME", str(loopback.toolkit(root / "cuda")))
        for name in ("CC", "CXX"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr("builder.wheels.local.find_sccache", lambda: None)  # as on a machine without sccache
        monkeypatch.setattr("builder.resources.ENVIRONMENT_BYTES", 0)
        monkeypatch.setattr("builder.resources.WORK_BYTES", 0)
        build_root = root.with_name(f"{root.name.replace(' ', '-')}-builds")  # not shared with parallel tests
        build_root.mkdir()
        monkeypatch.setattr("builder.wheels.build_dir.ROOT", build_root)
        can_gate(monkeypatch)
        yield SmallProject(root, index)
