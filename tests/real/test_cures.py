"""The examples of the cures in known_errors.yaml, compiled with the headers of a torch and a CUDA that refuse them.

All examples are in one file for each compiler: the compiler reports each row, and compiles what the cures make of it.
What g++ compiled is linked: a header of torch may declare what its libraries keep to themselves.

And the code of an original and of its cured source, compiled with the headers of a torch that takes both.
"""

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from builder.diagnosis.first_error import every_error
from builder.diagnosis.known_errors import KnownError, SourceCure, causes, knowledge
from builder.gate.system.process_end import demangle
from builder.matrix.axes import Cuda, Torch
from builder.matrix.config import PathSource
from builder.proof import Verdict
from builder.recipes.cured_code import prove_cures
from builder.recipes.cures import PATCH
from builder.store import Store
from builder.wheels.build_scripts.job_file import write_job
from builder.wheels.build_scripts.new_environment import link_toolkit
from builder.wheels.job import CompileJob
from builder.wheels.sccache.launchers.server import CacheSettings
from builder.wheels.sources.patches import make_patch
from builder.wheels.toolchain.environments import Environments, build_requirements
from tests.conftest import cell_python
from tests.unit.matrix import make
from tests.unit.wheels.make_record import BUILD, TOOLCHAIN

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
        wanted = build_requirements(TORCH, CUDA, [], toolkit=True)
        environment = environments.ensure(cell_python(), wanted, index=(), log=folder / "environment.log")
        home = environment.packaged_toolkit(CUDA)
        link_toolkit(home, "gcc")
        torch = environment.site_packages / "torch/include"
        includes = [f"-I{each}" for each in (torch, torch / "torch/csrc/api/include", home / "include")]
        found = [environment.site_packages / "torch/lib", *environment.site_packages.glob("nvidia/*/lib")]
        libraries = [str(each) for folder in found for each in folder.glob("lib*.so*")]
        self._libraries = [each for each in libraries if re.search(r"/lib(c10|torch|cudart|cublas)", each)]
        self._folder, self._toolkit, self._site = folder, home, environment.site_packages
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

    def job(self, folder: Path, before: Mapping[str, str], after: Mapping[str, str]) -> CompileJob:
        """A build that has compiled the files of `after`, which the patch of cures makes of those of `before`."""
        job = CompileJob(BUILD, make.recipe("toy"), TOOLCHAIN, folder / "work", folder / "log", 2, "test/cures")
        job.statistics.mkdir(parents=True)
        (source := folder / "toy").mkdir()
        (patch := source / PATCH).parent.mkdir()
        patch.write_bytes(make_patch(*({n: text.encode() for n, text in one.items()} for one in (before, after))))
        for name, text in before.items():
            (source / name).write_text(text)
            call = ["nvcc", str(folder / "gone/src"), name, "-I/env/torch/include", "-c", name, "-o", "a.o"]
            call += ["-std=c++20", "-gencode", "arch=compute_90,code=sm_90", ""]
            if name.endswith(".cu"):
                (job.statistics / f"call.{name}").write_text("\0".join(call))
        write_job(job.file, CacheSettings(folder, folder, self._toolkit, self._site, "gcc", "g++", folder, folder))
        return replace(job, recipe=replace(job.recipe, folder=source, source=PathSource(source), patches=(patch,)))


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
    # An example that is only a header: nothing behind it would be read.
    alone = [row for row in ROWS if compiler == "g++" and not code_of([row[1].before]) and not row[0].example]
    assert [known.about for known, cure in alone if known.hint not in compilers.reported(cure.before, compiler)] == []
    cured = HEAD + "".join(f"{cure.after}\n" for _, cure in [*rows, *alone])
    assert compilers.errors(cured, "link" if compiler == "g++" else compiler) == []


#: A file that torch 1.4 takes.
ORIGINAL = """\
#include <c10/util/Logging.h>
__device__ float weigh(float a, float b, float c = 3) { return a * c - b; }
__global__ void scale(float *x) { x[threadIdx.x] *= 2; }
__global__ void reduce(float *x, float *y) { x[0] = weigh(x[0], y[0]); }
__global__ void weighed(float *x, float *y) { x[0] = weigh(x[0], y[0], 2); }
__global__ void noted(int *x) { x[0] = __LINE__; }
void call(float *x) { AT_CHECK(x, "no data"); scale<<<1, 32>>>(x); }
void call_both(float *x, float *y) { AT_CHECK(x, y); reduce<<<1, 1>>>(x, y); }
float half(float x) { AT_CHECK(x, "nothing"); return x * 0.5; }
int even(int n) { CHECK_EQ(n % 2, 0); return n; }
"""
#: What a wrong cure changes, by function: a constant, two arguments in the other order, one left out.
ON_GPU = {
    "scale(float*)": ("*= 2", "*= 3"),
    "reduce(float*, float*)": ("weigh(x[0], y[0]);", "weigh(y[0], x[0]);"),
    "weighed(float*, float*)": ("weigh(x[0], y[0], 2)", "weigh(x[0], y[0])"),
}
ON_CPU = {
    "call(float*)": ('x, "no data"', 'x, "no date"'),
    "call_both(float*, float*)": ("1>>>(x, y)", "1>>>(y, x)"),
    "half(float)": ("0.5", "0.25"),
}


def planted(code: str, changes: Mapping[str, tuple[str, str]]) -> str:
    """The code with each of the changes."""
    for right, wrong in changes.values():
        assert code.count(right) == 1
        code = code.replace(right, wrong)
    return code


def test_a_cure_that_changes_code_is_found(compilers: Compilers, tmp_path: Path) -> None:
    """Only `sound.cu` is cured as it should be; its new line moves no line. Torch 1.4 has no TORCH_CHECK_EQ."""
    cured = "// cured\n" + re.sub(r"\b(AT_)?(?=CHECK)", "TORCH_", ORIGINAL)
    gone = "#include <never_there.h>\n" + ORIGINAL
    before = {"sound.cu": ORIGINAL, "gpu.cu": ORIGINAL, "cpu.cu": ORIGINAL, "gone.cu": gone}
    after = {"sound.cu": cured, "gpu.cu": planted(cured, ON_GPU), "cpu.cu": planted(cured, ON_CPU)}
    job = compilers.job(tmp_path, before, {**after, "gone.cu": "#include <never_there.h>\n" + cured})
    proof = prove_cures(job, tmp_path / "sources", lambda _: None) or pytest.fail("no proof")
    found = proof.evidence
    assert {*found["headers"].values()} == {"1.4.0"}
    assert found["kernels"] == {"sound.cu": 4, "cpu.cu": 4, "gpu.cu": 0}
    assert {file: {*map(demangle, names)} for file, names in found["differ"].items()} == {"gpu.cu": {*ON_GPU}}
    assert {file: {*map(demangle, names)} for file, names in found["review"].items()} == {"cpu.cu": {*ON_CPU}}
    assert found["functions"]["sound.cu"] == found["functions"]["cpu.cu"] + 3
    assert "never_there.h" in found["unknown"]["gone.cu"]
    assert proof.verdict is Verdict.FAILED
    assert "scale(float*)" in proof.reason
    assert list(job.work.iterdir()) == [job.shared], "nothing is left"


def test_each_file_has_the_headers_of_the_newest_torch_that_takes_it(compilers: Compilers, tmp_path: Path) -> None:
    """Torch 1 includes more by itself, and lacks `<ATen/ceil_div.h>`, which a cure includes. Nothing includes c.c."""
    own = '#include <c10/util/Logging.h>\n#include "d.h"\nint f() { return *std::make_unique<int>(d); }\n'
    gone = "#include <THC/THCDeviceUtils.cuh>\nint f(int n) { return THCCeilDiv(n, 512); }\n"
    new = "#include <ATen/ceil_div.h>\n" + gone.replace("THCCeilDiv", "at::ceil_div")
    old = {"a.cu": own, "b.cu": gone, "c.c": "THCState_getCurrentStream(s);\n", "d.h": "static int d = 1;\n"}
    cured = {"a.cu": f"#include <memory>\n{own}", "b.cu": new, "c.c": "\n", "d.h": "// 1\nstatic int d = 1;\n"}
    proof = prove_cures(compilers.job(tmp_path, old, cured), tmp_path, print) or pytest.fail("no proof")
    assert (proof.verdict, proof.evidence["headers"]) == (Verdict.PASSED, {"a.cu": "1.13.1", "b.cu": "1.10.2"})
