"""The checks of a wheel file that read its contents and its metadata."""

import re
import struct
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from twine.exceptions import InvalidDistribution
from twine.package import PackageFile

from builder.gate.check_table import CHECKS, MEANINGS
from builder.matrix.axes import AbiClass, Cell, Torch
from builder.proof import Check, Verdict
from builder.proofs.file_checks import static_proofs
from builder.proofs.static.contents import check_contents, check_grafted, check_payload
from builder.proofs.static.metadata import check_metadata
from builder.records import CudaSources
from builder.wheelfile.facts import Library, NoLibrary, metadata_faults, read_facts
from tests.unit.proofs.make import CELL, PROVIDED, claim, expect, gpu_library, library, make_wheel, table, wheel_facts

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
    if libraries == (library(ZLIB),):  # of others, as rtree, whose Python code opens it
        others = replace(claim(cuda_required=False), foreign=True)
        assert check_payload(wheel_facts(*libraries, tag=tag), others).reason == "1 library"


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


@pytest.mark.parametrize(
    ("project", "path", "says"),
    [
        ("nvidia-nvjitlink", "nvidia/cu13/lib/libnvJitLink.so.13", ""),
        ("torch", "torch/lib/libtorch_cpu.so", ""),
        ("torch-ops", "torch/lib/libtorch_cpu.so", "which torch, its"),
        ("nvidia-ops", "ops/libcudart.so.13", "which torch, its"),
    ],
)
def test_the_packages_that_provide_a_library_have_no_copy_of_it(project: str, path: str, says: str) -> None:
    """nvidia-nvjitlink 13.5.37 of the index was refused for its own library."""
    expect(check_grafted(wheel_facts(library(path), name=project), PROVIDED), says)


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
        ("ops.libs/libcudart-1a2b3c4d.so.13", False, True, "passed", "a second copy in a process with torch"),
        ("ops.libs/libcudart-1a2b3c4d.so.13", False, False, "failed", ""),
        ("ops/libcudart.so.13", False, True, "failed", ""),
        ("ops.libs/libgomp-1a2b3c4d.so.1.0.0", False, False, "passed", "an OpenMP runtime beside that of torch"),
        ("ops/libiomp5.so", False, True, "passed", "an OpenMP runtime beside that of torch"),
        ("ops.libs/libgomp-1a2b3c4d.so.1.0.0", True, True, "passed", "a second copy in a process with torch"),
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
    for name, verdict in (("libcupti.so.13", "passed"), ("libcuda.so.1", "failed")):  # as triton, which torch requires
        alone = check_grafted(wheel_facts(library(f"x/{name}")), frozenset({name}), foreign=True, uses_torch=False)
        assert (alone.verdict, "remarks" in alone.evidence) == (verdict, verdict == "passed")


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


OTHER = Cell.parse("torch2.12.0-cu130-cp312")


def test_linkage_is_proven_in_each_cell() -> None:
    claimed = claim(cells=(CELL, OTHER), requires=("torch>=2.11,<2.13",))
    proofs = static_proofs(wheel_facts(gpu_library("sm_90")), claimed, PROVIDED, {CELL: table()})
    linkage = {proof.cell: proof.verdict for proof in proofs if proof.check is Check.LINKAGE}
    assert linkage == {CELL: Verdict.PASSED}  # the symbols of the other cell were not read


def test_stable_wheel_has_two_further_checks() -> None:
    tag = "cp310-abi3-manylinux_2_28_x86_64"
    wheel = wheel_facts(gpu_library("sm_90", undefined=("torch_call_dispatcher",)), tag=tag, version="1.0+cu13")
    claimed = claim(abi=AbiClass.STABLE, torch=Torch(2, 10, 0), local="cu13")
    proofs = {proof.check: proof for proof in static_proofs(wheel, claimed, PROVIDED, {CELL: table()})}
    assert proofs[Check.ABI3].verdict is Verdict.PASSED
    assert proofs[Check.STABLE].verdict is Verdict.PASSED


def test_libraries_of_a_cell_count_as_provided() -> None:
    wheel = wheel_facts(gpu_library("sm_90", needed=("libcudart.so.13",)))
    proofs = {proof.check: proof for proof in static_proofs(wheel, claim(), frozenset(), {CELL: table()})}
    assert proofs[Check.TAGS].verdict is Verdict.PASSED


def test_every_check_of_the_gate_is_a_check_of_proofs_in_the_same_order() -> None:
    of_gate = [check for check in Check if check in CHECKS]
    assert of_gate == list(CHECKS)
    assert [check for check in of_gate if check.on_gpu] == [name for name in CHECKS if name.startswith("gpu-")]


def test_every_check_has_a_meaning_in_one_sentence() -> None:
    assert all(check.meaning.endswith(".") and "\n" not in check.meaning for check in Check)
    assert Check.VALUES.meaning == MEANINGS["values"]
    assert Check("tags") is Check.TAGS


URL = "https://download.example/whl/cu130/torch-2.11.0%2Bcu130-cp312-cp312-manylinux_2_28_x86_64.whl"
ABI3 = "cp310-abi3-manylinux_2_28_x86_64"


NEVER = ("py3-abi3-linux_x86_64", "cp3-abi3-any", f"cp3{'9' * 5000}-abi3-any")  # tags that no Python has
BY_PYTHON = (
    "torch==2.11.*; python_version >= '3.12'",
    "torch==2.10.*; python_version < '3.12'",
    "torch==2.9.*; sys_platform == 'win32'",
)
NO_VERSION = "torch @ git+https://me:secret@git.example/pytorch@v2.11.0"
METADATA: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {}, ""),
    ({"tags": NEVER}, {}, ""),
    ({"tags": ("cp310-abi3t-linux_x86_64",), "requires_python": "<3.15,>=3.10"}, {}, "cp310-abi3t have no Python in"),
    ({"version": "1.0"}, {}, r"lacks the local part \+cu130\.torch2\.11"),
    ({"version": "1.0+cu13"}, {}, "lacks the local part"),
    ({"version": "1.0"}, {"local": ""}, ""),
    ({"filename": "ops-1.1-cp312-cp312-linux_x86_64.whl"}, {}, "version is 1.1 in the file name"),
    ({"name": "Others"}, {}, "project is ops in the file name and Others in METADATA"),
    (
        {"requires_dist": (NO_VERSION,)},
        {"requires": ()},
        r"torch by a URL \(git.example\): .* because the URL does not",
    ),
    (
        {"requires_dist": (f"torch @ {URL.replace('11.0', '10.0')}",)},
        {"requires": ()},
        "which excludes cells of this build",
    ),
    ({"requires_dist": ()}, {}, "does not require torch>=2.11,<2.12"),
    ({"requires_dist": ("torch; extra == 'all'",)}, {}, "does not require"),
    ({"requires_dist": ("torch",)}, {}, r"allows torch 1\.0\.0, .* and \d+ more"),
    ({"requires_dist": ("torch>=2.11",)}, {}, r"allows torch 2\.12\.0"),
    ({"requires_dist": ("torch>=2.10,<2.12",)}, {}, r"allows torch 2\.10\.0"),
    ({"requires_dist": ("torch==2.11.*",)}, {}, ""),
    ({"requires_dist": ("torch==2.11.0+cu130",)}, {}, ""),  # the cell's own torch
    ({"requires_dist": ("torch==2.11.1",)}, {}, "excludes cells of this build: torch2.11.0"),
    ({"requires_dist": BY_PYTHON}, {"requires": ()}, ""),
    ({"requires_dist": ("torch>=2.11", "torch<2.12")}, {}, ""),
    ({"requires_dist": ("torch>=2.11,<2.12", "???")}, {}, r"'\?\?\?' is not a valid"),
    ({}, {"requires": ("torch>=2.11,<2.12", "numpy>=2")}, "does not require numpy>=2"),
    ({"requires_dist": ("torch==2.11.0", "NumPy>=1")}, {"requires": ("numpy>=2",)}, "in extension.yaml has numpy>=2"),
    ({"requires_dist": ("torch==2.11.0", "NumPy<3,>=2")}, {"requires": ("numpy>=2",)}, ""),
    ({"requires_python": "<3.12"}, {}, "excludes Python 3.12, which cells of this build have"),
    ({"requires_python": ""}, {}, ""),
    ({"requires_python": "3.10 up"}, {}, "not a valid version range"),
    ({"tag": ABI3, "requires_python": ">=3.8"}, {}, ""),  # wider than the tag
    ({"tag": ABI3, "requires_python": "<3.10"}, {"cells": ()}, "cp310-abi3 have no Python"),
]


@pytest.mark.parametrize(("facts", "claimed", "error"), METADATA)
def test_metadata(facts: dict[str, Any], claimed: dict[str, Any], error: str) -> None:
    expect(check_metadata(wheel_facts(gpu_library("sm_90"), **facts), claim(**claimed)), error)


def test_stable_wheel_admits_every_torch_from_its_floor() -> None:
    cells = tuple(map(Cell.parse, ("torch2.10.0-cu130-cp310", "torch2.15.0-cu132-cp314")))
    wheel = wheel_facts(library(), tag=ABI3, version="1.0+cu13", requires_dist=("torch>=2.10",))
    stable = claim(cells=cells, local="cu13", requires=("torch>=2.10",))
    expect(check_metadata(wheel, stable))


def test_a_version_that_cannot_be_read_for_certain_is_a_remark() -> None:
    facts = wheel_facts(version="1.0+torch211", requires_dist=("torch==2.11.*",))
    proof = check_metadata(facts, claim(local=""))
    assert proof.evidence["remarks"] == ["the version 1.0+torch211 names torch 2.1 or 2.11"]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("numpy @ https://download.example/numpy-2.0-py3-none-any.whl", "requires numpy by a URL (download.example)"),
        ("numpy @ git+ssh://git@git.example/numpy", "requires numpy by a URL (git.example)"),
        ("numpy @ file:///home/me/numpy.whl", "requires numpy by a URL (a file)"),
        (f"torch @ {URL} ; extra == 'cuda'", "requires torch by a URL (download.example)"),
        ("numpy>=2", ""),
    ],
)
def test_another_requirement_by_a_url_is_a_remark(line: str, says: str) -> None:
    facts = wheel_facts(library(), requires_dist=("torch>=2.11,<2.12", line))
    proof = expect(check_metadata(facts, claim()), remark=says)
    assert len(proof.evidence.get("remarks", [])) == bool(says)


def wheel(folder: Path, metadata_version: str, lines: str) -> Path:
    path = folder / "ops-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        text = f"Metadata-Version: {metadata_version}\nName: ops\nVersion: 1.0\nRequires-Dist: torch==2.11.*\n{lines}\n"
        archive.writestr("ops-1.0.dist-info/METADATA", f"{text}\nName: not a header\n")
        archive.writestr("ops-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("ops-1.0.dist-info/RECORD", "")
    return path


@pytest.mark.parametrize(
    ("version", "lines", "says"),
    [
        ("2.4", "Import-Name: x", "import-name introduced in metadata version 2.5, not 2.4"),
        ("2.3", "License-Expression: MIT", "license-expression introduced in metadata version 2.4, not 2.3"),
        ("2.2", "Dynamic: Name", "'name' is not allowed as a dynamic field"),
        ("2.1", "Description-Content-Type: text/x", "not 'text/x'"),
        ("2.7", "", "'2.7' is not a valid metadata version"),
        ("3.0", "", "'3.0' is not a valid metadata version"),
        ("2.1", "Owner: me", "owner is unknown"),
        ("2.1", "License-File: LICENSE", ""),
        ("2.3", "License-File: LICENSE", ""),
        ("2.5", "Import-Name: x\nImport-Namespace: y", ""),
        ("2.6", "Dynamic: Summary\nSummary: x", ""),
        ("2.4", "License-Expression: MIT OR Apache-2.0\nLicense-File: LICENSE", ""),
    ],
)
def test_what_twine_refuses_is_a_remark(tmp_path: Path, version: str, lines: str, says: str) -> None:
    path = wheel(tmp_path, version, lines)
    proof = check_metadata(read_facts(path), claim(cells=(), local="", requires=()))
    assert proof.verdict == "passed", proof.reason
    remarks = " ".join(proof.evidence.get("remarks", ()))
    assert says in remarks
    assert bool(remarks) == bool(says)
    if says:
        with pytest.raises(InvalidDistribution):
            PackageFile.from_filename(str(path), None)
    else:
        PackageFile.from_filename(str(path), None)


@pytest.mark.parametrize(
    "line",
    [
        "License-Expression: " + "(" * 10_000,
        "Name: " + "a" * 10**6,
        "Version: " + "9" * 6000,
        "Requires-Dist: ???",
        "\xff",
    ],
)
def test_hostile_metadata_raises_nothing(line: str) -> None:
    faults = metadata_faults(f"Metadata-Version: 2.4\nName: ops\nVersion: 1.0\n{line}\n".encode("latin-1"))
    assert all(len(fault) < 1000 for fault in faults)
