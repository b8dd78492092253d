"""The examples of the cures in known_errors.yaml, compiled with the headers of a torch and a CUDA that refuse them.

All examples are in one file for each compiler: the compiler reports each row, and compiles what the cures make of it.
What g++ compiled is linked: a header of torch may declare what its libraries keep to themselves.
"""

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from builder.diagnosis.first_error import every_error
from builder.diagnosis.known_errors import KnownError, SourceCure, causes, knowledge
from builder.matrix.axes import Cuda, Python, Torch
from builder.store import Store
from builder.wheels.build_scripts.new_environment import link_toolkit
from builder.wheels.toolchain.environments import Environments, build_requirements
from builder.wheels.toolchain.machine import find_python

pytestmark = [pytest.mark.network, pytest.mark.slow]

TORCH, CUDA = Torch.parse("2.11.0"), Cuda.parse("13.0")
ROWS = [
    (known, known.cure)
    for known in knowledge().errors
    if known.cure and known.cure.after and not (known.torch and known.torch > TORCH)
]
HEAD = "#include <ATen/ATen.h>\n#include <cuda_runtime.h>\n"


class Compilers:
    """g++ and nvcc with the headers of torch and CUDA. Only g++'s "link" makes a file."""

    def __init__(self, store: Path, folder: Path) -> None:
        environments = Environments(Store(store), torch_index="")
        shared = Python.parse("3.12")  # the incidents build toy_attn in the same environment
        python = shared if find_python(shared) else Python.parse("{}.{}".format(*sys.version_info))
        wanted = build_requirements(TORCH, CUDA, [], toolkit=True)
        environment = environments.ensure(python, wanted, index=(), log=folder / "environment.log")
        home = environment.packaged_toolkit(CUDA)
        link_toolkit(home, "gcc")
        torch = environment.site_packages / "torch/include"
        includes = [f"-I{each}" for each in (torch, torch / "torch/csrc/api/include", home / "include")]
        found = [environment.site_packages / "torch/lib", *environment.site_packages.glob("nvidia/*/lib")]
        libraries = [str(each) for folder in found for each in folder.glob("lib*.so*")]
        self._libraries = [each for each in libraries if re.search(r"/lib(c10|torch|cudart|cublas)", each)]
        self._folder = folder
        flags = ["-std=c++17", "-w", *includes, "-x", "c++"]
        self._argv = {
            "g++": ["g++", "-fsyntax-only", *flags],
            "link": ["g++", "-shared", "-fPIC", "-Wl,-z,defs", "-o", "linked.so", *flags],
            "nvcc": [str(home / "bin/nvcc"), "-std=c++17", "-ptx", "-w", "-arch=sm_90", "-o", "/dev/null", *includes],
        }

    def errors(self, code: str, compiler: str) -> list[str]:
        """What a compiler prints; empty if the code is right."""
        (path := self._folder / "example.cu").write_text(code)
        argv = [*self._argv[compiler], str(path), *(["-x", "none", *self._libraries] if compiler == "link" else [])]
        done = subprocess.run(argv, cwd=self._folder, text=True, capture_output=True, check=False)
        return (done.stdout + done.stderr).splitlines() if done.returncode else []

    def reported(self, code: str, compiler: str) -> set[str]:
        """The hints of the rows that a compiler reports."""
        output = self.errors(code, compiler)
        return {cause.known.hint for cause in causes(every_error(output, str(self._folder)), TORCH, CUDA, [])}


@pytest.fixture(scope="module")
def compilers(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Compilers:
    return Compilers(store, tmp_path_factory.mktemp("cures"))


def examples(compiler: str) -> list[tuple[KnownError, SourceCure]]:
    """The rows whose example is code, and needs this compiler."""
    return [(known, cure) for known, cure in ROWS if cure.compile == compiler and code_of([cure.before])]


def code_of(texts: Sequence[str]) -> str:
    """The examples without their headers, which a compiler that misses one would not read further than."""
    lines = [line for text in texts for line in text.splitlines() if not line.startswith("#include")]
    return "".join(f"{line}\n" for line in lines)


@pytest.mark.parametrize("compiler", ["g++", "nvcc"])
def test_compilers_refuse_each_example_and_take_the_cured_one(compilers: Compilers, compiler: str) -> None:
    rows = examples(compiler)
    headers = [line for _, cure in rows for line in cure.before.splitlines() if line.startswith("#include")]
    head = HEAD + "".join(f"{line}\n" for line in headers)
    reported = compilers.reported(head + code_of([cure.before for _, cure in rows]), compiler)
    assert {known.about for known, _ in rows if known.hint not in reported} == set()
    linked = {"g++": "link"}.get(compiler, compiler)
    assert compilers.errors(HEAD + "".join(f"{cure.after}\n" for _, cure in rows), linked) == []


def test_compilers_do_not_find_the_headers_of_the_examples(compilers: Compilers) -> None:
    alone = [(known, cure) for known, cure in ROWS if not code_of([cure.before]) and not known.example]
    assert [known.about for known, cure in alone if known.hint not in compilers.reported(cure.before, "g++")] == []
    assert compilers.errors(HEAD + "".join(f"{cure.after}\n" for _, cure in alone), "g++") == []
