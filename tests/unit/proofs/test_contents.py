from __future__ import annotations

import re
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from builder.proof import Check, Verdict
from builder.proofs.static.contents import check_contents, check_grafted, check_payload
from builder.records import CudaSources
from builder.wheelfile.facts import Library, NoLibrary, read_facts
from tests.unit.proofs.make import PROVIDED, claim, expect, gpu_library, library, make_wheel, wheel_facts

NVJPEG, ZLIB = "ops.libs/libnvjpeg-1a2b3c4d.so.13", "ops.libs/libz-1a2b3c4d.so.1"
PAYLOADS: list[tuple[tuple[Library, ...], bool, str, str]] = [
    ((gpu_library("sm_90"),), True, "passed", "1 library"),
    ((library(), gpu_library("sm_90")), True, "passed", "2 libraries"),
    ((library(),), False, "passed", ""),
    ((library(),), True, "failed", r"no GPU code in _C\.so.*is_available.*FORCE_CUDA"),
    ((), True, "failed", r"the wheel \(py3-none-any\) contains no library: the build compiled no source"),
    ((), False, "failed", "ext_modules"),
    ((library(), gpu_library("sm_90", path=NVJPEG)), True, "failed", "no GPU code"),  # a copied library has it
    ((library(ZLIB),), True, "failed", "contains no library"),
]


@pytest.mark.parametrize(("libraries", "required", "verdict", "says"), PAYLOADS)
def test_payload(libraries: tuple[Library, ...], required: bool, verdict: str, says: str) -> None:
    tag = "cp312-cp312-manylinux_2_28_x86_64" if libraries else "py3-none-any"
    proof = check_payload(wheel_facts(*libraries, tag=tag), claim(cuda_required=required))
    assert (proof.check, proof.verdict, proof.cell) == (Check.PAYLOAD, verdict, None)
    assert re.search(says, proof.reason)


@pytest.mark.parametrize(
    ("path", "soname", "grafted"),
    [
        ("ops/_C.so", "", False),  # its own
        ("ops.libs/libjpeg-1a2b3c4d.so.8", "libjpeg-1a2b3c4d.so.8", False),  # not provided
        ("ops/libtorchaudio.so", "", False),  # a name that only begins like torch
        ("ops/libtorch_scatter.so", "", False),  # a name that torch's libraries do not have
        ("ops/libtorch_cpu.so", "", True),  # torch
        ("ops/libc10_cuda.so", "", True),  # c10, not in `provided`
        ("ops.libs/libcudart-1a2b3c4d.so.13.0.96", "", True),  # CUDA under auditwheel's name
        ("ops.libs/libcudart.faf08d9a.so.13", "", True),  # CUDA under torchvision's name
        ("ops.libs/libcudart-1a2b3c4d.so.12.4.127", "", True),  # different CUDA
        ("ops/libhidden.so", "libcudart.so.13", True),  # CUDA under a name that hides it
        ("ops.libs/libgomp-1a2b3c4d.so.1.0.0", "", True),  # OpenMP, which torch provides
        ("ops/libcuda.so.1", "", True),  # the driver
        ("ops/libnvidia-ml.so.1", "", True),  # the driver's NVML
    ],
)
def test_grafted(path: str, soname: str, grafted: bool) -> None:
    proof = check_grafted(wheel_facts(gpu_library("sm_90"), library(path, soname=soname)), PROVIDED)
    assert proof.verdict is (Verdict.FAILED if grafted else Verdict.PASSED)
    assert proof.evidence["grafted"] == ([path] if grafted else [])
    assert (path in proof.reason) is grafted


@pytest.mark.parametrize(("digest", "grafted"), [("24e2ab19", False), ("a34b3233", True)])
def test_library_that_torch_itself_grafted_is_provided_under_that_name_only(digest: str, grafted: bool) -> None:
    """torch 2.4 from the default index holds its own OpenMP library, renamed by auditwheel."""
    path = f"ops.libs/libgomp-{digest}.so.1"
    proof = check_grafted(wheel_facts(gpu_library("sm_90"), library(path)), frozenset({"libgomp-a34b3233.so.1"}))
    assert proof.evidence["grafted"] == ([path] if grafted else [])


@pytest.mark.parametrize(
    ("sources", "says"),
    [
        (CudaSources(2, ("csrc/a.cu",)), r"no GPU code in _C\.so: csrc/a\.cu was never compiled \(is it in `sources`"),
        (CudaSources(2, ("a.cu", "b.cu")), r"b\.cu were never compiled \(are they .*run time.*`cuda: optional`"),
        (CudaSources(1, ("a.cu",), "setup.py"), r"setup\.py calls torch\.cuda\.is_available\(\).*`assume_cuda: true`"),
        (CudaSources(0), "the source has no .cu file"),
        (CudaSources(1), "every .cu file of the source was compiled"),
    ],
)
def test_a_wheel_without_gpu_code_is_explained_by_its_build(sources: CudaSources, says: str) -> None:
    proof = expect(check_payload(wheel_facts(library()), replace(claim(), cuda_sources=sources)), says)
    assert "FORCE_CUDA" not in proof.reason


@pytest.mark.parametrize(
    ("path", "provided", "foreign", "verdict", "remark"),
    [
        ("ops.libs/libcudart-1a2b3c4d.so.13", False, True, "passed", "a second runtime in the process"),
        ("ops.libs/libcudart-1a2b3c4d.so.13", False, False, "failed", ""),
        ("ops/libcudart.so.13", False, True, "failed", ""),
        ("ops.libs/libgomp-1a2b3c4d.so.1.0.0", False, False, "passed", "an OpenMP runtime beside that of torch"),
        ("ops/libiomp5.so", False, True, "passed", "an OpenMP runtime beside that of torch"),
        ("ops.libs/libgomp-1a2b3c4d.so.1.0.0", True, True, "passed", "a second runtime in the process"),
    ],
)
def test_a_runtime_of_its_own(path: str, provided: bool, foreign: bool, verdict: str, remark: str) -> None:
    theirs = frozenset({"libgomp.so.1"} if provided else ())
    proof = check_grafted(wheel_facts(library(path)), theirs, foreign=foreign)
    assert proof.verdict == verdict
    assert remark in " ".join(proof.evidence.get("remarks", ()))
    assert bool(remark) is ("remarks" in proof.evidence)


def test_openmp_matters_only_beside_torch() -> None:
    """A wheel's own libtorchcodec is no library of torch."""
    own = library("x/_C.so", needed=("libtorchcodec_core4.so",))
    facts = wheel_facts(library("x.libs/libgomp-1a2b3c4d.so.1", needed=()), own, requires_dist=("numpy",))
    assert "remarks" not in check_grafted(facts, frozenset()).evidence


@pytest.mark.parametrize(
    ("files", "named"),
    [
        (("ops/__init__.py", "tests/__init__.py", "benchmarks/a.py", "csrc/a.py"), "benchmarks, csrc and tests"),
        (("ops/__init__.py", "_C.abi3.so"), "_C.abi3.so"),
        (("ops/__init__.py", "ops-1.0.data/purelib/docs/__init__.py"), "docs"),
        (("ops/tests/__init__.py", "ops/_C.so", "ops-1.0.dist-info/METADATA", "ops-1.0.data/scripts/test"), ""),
        (("testsuite/__init__.py", "_Cython.py"), ""),
        (("my_ops/__init__.py",), ""),  # a project may have such a name
    ],
)
def test_stray_top_level_packages(files: tuple[str, ...], named: str) -> None:
    proof = check_contents(
        wheel_facts(name="my-ops" if "my_ops/__init__.py" in files else "ops", files=tuple(sorted(files)))
    )
    assert proof.verdict == "passed"
    remarks = proof.evidence.get("remarks", [])
    assert [f"the wheel installs {named} at the top" in one for one in remarks] == ([True] if named else [])


@pytest.mark.parametrize(
    ("include", "others", "lacks"),
    [
        ('"op.cuh"', (), "op.cuh"),
        ('"op.cuh"', ("ops/csrc/op.cuh",), ""),
        ('"op.cuh"', ("ops/include/op.cuh",), ""),
        ('"../include/op.cuh"', ("ops/include/op.cuh",), ""),
        ("<glm/glm.hpp>", (), "glm/glm.hpp"),
        ("<glm/glm.hpp>", ("ops/third_party/glm/glm/glm.hpp",), ""),
        ('"torch/extension.h"', (), ""),
        ('"cuda_runtime.h"', (), ""),
        ("<ATen/cuda/CUDAContext.h>", (), ""),
        ("<cub/cub.cuh>", (), ""),
        ("<sys/types.h>", (), ""),
        ("<vector>", (), ""),
        ('"op.cuh"\n#ifdef WITH_X\n#include "x.h"\n#endif', ("ops/op.cuh",), ""),
        ('"op.cuh"\n#ifndef X\n#define Y\n#include "x.h"\n#endif\n#include "y.h"', ("ops/op.cuh",), "y.h"),
        ('"math.h" // "none.h"', ("ops/math.h",), ""),
    ],
)
def test_headers_that_cuda_sources_lack(include: str, others: tuple[str, ...], lacks: str, tmp_path: Path) -> None:
    source = f'// #include "comment.h"\n/*\n#include "block.h"\n*/\n# include {include}\n'.encode()
    files = {"ops/csrc/k.cu": source, **dict.fromkeys(others, b"")}
    facts = read_facts(make_wheel(tmp_path, files))
    assert facts.missing_headers == ({"ops/csrc/k.cu": (lacks,)} if lacks else {})
    said = " ".join(check_contents(facts).evidence.get("remarks", ()))
    assert (f"not the headers {lacks} that ops/csrc/k.cu include" in said) if lacks else not said


def test_headers_of_headers_are_searched_too(tmp_path: Path) -> None:
    header = b'#ifndef A_H\n#define A_H\n#include "none.h"\n#endif\n'
    files = {"ops/k.cu": b'#include "a.cuh"\n', "ops/a.cuh": header, "ops/unused.cuh": b'#include "other.h"\n'}
    assert read_facts(make_wheel(tmp_path, files)).missing_headers == {"ops/a.cuh": ("none.h",)}
    assert not read_facts(make_wheel(tmp_path, {"ops/api.h": b'#include "none.h"\n'})).missing_headers  # no sources


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 123456\n"


def elf_head(kind: int = 3, machine: int = 62, system: int = 0) -> bytes:
    """The first bytes of an ELF file."""
    return b"\x7fELF\2\1\1" + bytes([system]) + bytes(8) + struct.pack("<HH", kind, machine) + bytes(44)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "an empty file"),
        (POINTER, "a pointer of Git LFS"),
        (b"libops.so.1.2\n", "the text of a symbolic link"),
        (b"/* GNU ld script */\nINPUT(libops.so.1)\n", "a linker script"),
        (b"GROUP ( libops.so.1 )\n", "a linker script"),
        (b"not a library\n", "a text"),
        (b"\0\1\2", "no ELF file"),
        (b"!<arch>\n", "a static library"),
        (b"MZ\x90\0", "a library of Windows"),
        (b"\xcf\xfa\xed\xfe", "a library of macOS"),
        (elf_head(kind=1), "an object file"),
        (elf_head(kind=0), "an ELF file of the type 0"),
        (elf_head(machine=190), "GPU code"),
        (elf_head(system=9), "a library of another system (ELF OS ABI 9)"),
        (b"\x7fELF", "an ELF file of the type 0"),
    ],
)
def test_a_module_that_is_no_library(tmp_path: Path, content: bytes, what: str) -> None:
    name = "ops/_C.cpython-312-x86_64-linux-gnu.so"
    proof = check_contents(read_facts(make_wheel(tmp_path, {name: content})))
    expect(proof, f"{name} is {what}, and no library")
    assert ("git lfs pull" in proof.reason) == (content == POINTER)


@pytest.mark.parametrize(
    ("name", "python", "verdict"),
    [
        ("ops/_C.abi3.so", b"", "failed"),
        ("ops/libx.so.1", b"CDLL('libx.so.1')\n", "failed"),
        ("ops/_C.so", b"from . import (\n    _C,\n)\n", "failed"),
        ("ops/_C.so", b"from . import (  # (all)\n    a,  # (one)\n    _C)\n", "failed"),
        ("ops/libx.so.1", b"def f():\n    CDLL('libx.so.1')\n", "passed"),
        ("ops/libx.so", b"", "passed"),
        ("ops/_C.cpython-312-darwin.so", b"", "passed"),
    ],
)
def test_a_file_that_nobody_loads_may_be_anything(tmp_path: Path, name: str, python: bytes, verdict: str) -> None:
    files = {"ops/__init__.py": python, name: b"some text\n"}
    proof = check_contents(read_facts(make_wheel(tmp_path, files)))
    assert proof.verdict == verdict
    assert (name in "".join(proof.evidence.get("remarks", ()))) == (verdict == "passed" and "darwin" not in name)


def test_a_library_that_another_one_needs_is_no_text() -> None:
    script = NoLibrary("ops/libx.so", "a linker script")
    assert check_contents(wheel_facts(library(needed=("libx.so",)), no_libraries=(script,))).verdict == "failed"
    assert check_contents(wheel_facts(library(), no_libraries=(script,))).verdict == "passed"


@pytest.mark.parametrize(
    ("name", "text", "shown"),
    [
        ("ops.pth", "# a comment\nfolder\nimport ops; ops.start()\n", "import ops; ops.start()"),
        ("ops.pth", "import\tops\n", "import\tops"),
        ("ops-1.0.data/purelib/ops.pth", "import os\n", "import os"),
        ("sitecustomize.py", "# patches torch\nx = 1\n", "x = 1"),
        ("usercustomize/__init__.py", "x = 2\n", "x = 2"),
        ("ops.pth", "folder\nimportant\n", ""),
        ("ops/ops.pth", "import ops\n", ""),
        ("ops/sitecustomize.py", "x = 1\n", ""),
    ],
)
def test_code_at_the_start_of_python_is_named(tmp_path: Path, name: str, text: str, shown: str) -> None:
    facts = read_facts(make_wheel(tmp_path, {"ops/__init__.py": b"", name: text.encode()}))
    proof = check_contents(facts)
    assert proof.verdict == "passed"
    said = "".join(proof.evidence.get("remarks", ()))
    assert (f"executes {name} when it starts, even without an import: {shown}" in said) if shown else not said
