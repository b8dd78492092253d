"""Undefined symbols, searched where the loader of a cell searches, and the probable cause of missing ones."""

from __future__ import annotations

from typing import Any

import pytest

from builder.matrix.config import Variant
from builder.proof import Check
from builder.proofs.static.linkage import check_linkage, check_linkage_in
from builder.records import CudaSources
from builder.wheelfile.facts import Library
from tests.unit.proofs.make import CELL, FORWARD, claim, expect, gpu_library, library, table, wheel_facts

CXX11 = "_ZN3c105ErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
CUDART_12 = {"cudaFancy": ("libcudart.so.12", "libcudart.so.12")}


def uses(*undefined: str, **facts: Any) -> Library:
    return library(undefined=undefined, **facts)


LIBC, LOADER = ("libc.so.6", "GLIBC_2.99"), ("ld-linux-x86-64.so.2", "GLIBC_2.3")
FOUND: dict[str, tuple[Library, ...]] = {
    "in a library it needs": (uses("_ZN2at6Tensor3fooEv"),),
    "in a library needed in turn": (uses("_ZN3c105ErrorC1Ev"),),
    "through libtorch": (uses("aoti_torch_get_current_cuda_stream", needed=("libtorch.so",)),),
    "CUDA runtime, which torch opens for all": (uses("cudaMalloc", needed=()),),
    "Python": (uses("PyModule_Create2", "_Py_NoneStruct", needed=()),),
    "C library, without a version": (uses("getenv", "cosf", needed=()),),
    "C++ library, which torch needs": (uses("_ZSt4cout", needed=()),),
    "a later version is the tags' matter": (uses("fancy", needed=("libc.so.6",), bound={"fancy": LIBC}),),
    "the loader itself": (uses("__tls_get_addr", needed=(), bound={"__tls_get_addr": LOADER}),),
    "the driver": (uses("cuLaunchKernel", needed=("libcuda.so.1",)),),
    "itself": (uses("own", defined=("own",)),),
    "by file name": (uses("helper", needed=("libh.so",)), library("ops/libh.so", defined=("helper",))),
    "by soname": (uses("f", needed=("libh.so.1",)), library("ops/h", soname="libh.so.1", defined=("f",))),
    "no library": (),
}


@pytest.mark.parametrize("libraries", FOUND.values(), ids=FOUND)
def test_found(libraries: tuple[Library, ...]) -> None:
    proof = check_linkage(wheel_facts(*libraries), CELL, table())
    assert (proof.check, proof.cell, proof.verdict) == (Check.LINKAGE, CELL, "passed"), proof.reason
    assert proof.evidence["missing"] == {}


@pytest.mark.parametrize(
    ("libraries", "symbols", "says"),
    [
        ((uses("_ZTIN5torch8autograd4NodeE"),), {}, r"typeinfo for torch::autograd::Node: .*different torch"),
        ((uses(CXX11),), {"cxx11": False}, "different C.. ABI of std::string.*USE_CXX11_ABI=0"),
        ((uses(CXX11),), {}, "built against a different torch"),  # not the string
        ((uses("aoti_torch_get_current_cuda_stream"),), {}, r"not linked against libtorch_cuda\.so"),
        ((uses("helper"), library("ops/h.so", defined=("helper",))), {}, r"ops/h\.so defines the symbol, but"),
        ((uses("torch_has_storage"),), {}, r"torch 2\.14 added this function, but this cell has torch 2\.11"),
        ((uses("torch_sorted"),), {}, "no torch release in buildfarm's table shims.yaml has this function"),
        ((uses("cublasSgemm_v2", needed=()),), {}, r"link libcublas for CUDA 13\.0"),
        ((uses("cublasLtMatmul", needed=()),), {}, "link libcublasLt for CUDA"),
        ((uses("__cudaFancy", needed=()),), {}, "link libcudart for CUDA"),
        ((uses("_ZSt21something_from_gcc_99v"),), {}, "newer libstdc"),
        ((uses("cuLaunchKernel"),), {}, "cuLaunchKernel"),  # the driver is not linked
    ],
)
def test_missing(libraries: tuple[Library, ...], symbols: dict[str, Any], says: str) -> None:
    expect(check_linkage(wheel_facts(*libraries), CELL, table(**symbols)), says)


@pytest.mark.parametrize(
    ("needed", "says"),
    [
        ("libc10.so.2", r"this cell provides libc10\.so: build the wheel with this cell's torch"),
        ("libtorch_cuda_cpp.so", r"which torch 2\.11\.0 does not provide: the wheel was built against a different"),
        ("libcurand.so.10", r"does not bring: .*`nvidia-curand`.* path `\$ORIGIN/\.\./nvidia/cu13/lib`"),
        ("libnppig.so.13", "add `nvidia-npp` to `requires`"),
        ("libjpeg.so.8", "which this cell does not provide: link it statically"),
    ],
)
def test_needed_library_does_not_exist(needed: str, says: str) -> None:
    proof = expect(check_linkage(wheel_facts(uses(needed=(needed,))), CELL, table()), says)
    assert proof.evidence["absent"] == {"ops/_C.so": [needed]}


def test_missing_library_is_one_error_not_one_for_each_symbol() -> None:
    wheel = wheel_facts(uses("cudaFancy", needed=("libcudart.so.12",), bound=CUDART_12))
    proof = check_linkage(wheel, CELL, table())
    assert proof.evidence["missing"] == {}
    assert "cudaFancy" not in proof.reason


def test_versioned_symbol_of_a_cuda_library_must_be_defined_there() -> None:
    bound = {"cudaFancy": ("libcudart.so.13", "libcudart.so.13")}
    proof = check_linkage(wheel_facts(uses("cudaFancy", needed=("libcudart.so.13",), bound=bound)), CELL, table())
    assert "cudaFancy" in proof.reason


@pytest.mark.parametrize("machine", ["EM_NONE", "EM_HEXAGON", "4711", "riscv64"])
def test_a_library_for_any_processor_is_judged(machine: str) -> None:
    facts = wheel_facts(library(machine=machine))
    assert check_linkage(facts, CELL, table()).verdict in ("passed", "failed")


def test_missing_dependencies_of_torch_itself_do_not_matter() -> None:
    symbols = table({"libtorch_cpu.so": (("libmpi.so.40",), ("_ZN2at6Tensor3fooEv",))})
    assert check_linkage(wheel_facts(uses("_ZN2at6Tensor3fooEv")), CELL, symbols).verdict == "passed"


def test_evidence_has_mangled_and_readable_names() -> None:
    proof = check_linkage(wheel_facts(uses(FORWARD)), CELL, table())
    readable = "ms_deform_attn_cuda_forward(" + "at::Tensor const&, " * 5 + "int)"
    assert proof.evidence["missing"] == {"ops/_C.so": {FORWARD: readable}}


def test_a_forgotten_cuda_file_is_named() -> None:
    libraries = (uses(FORWARD), gpu_library("sm_90"))
    few, many = (CudaSources(count + 1, tuple(f"{n}.cu" for n in range(count))) for count in (1, 400))
    assert "0.cu was never compiled" in check_linkage(wheel_facts(*libraries), CELL, table(), few).reason
    assert "check `sources`" in check_linkage(wheel_facts(*libraries), CELL, table(), many).reason


PER_CUDA = tuple(
    library(f"ops/libx_cuda{name}.so", needed=(f"libcudart.so.{major}",), soname="")
    for name, major in (("118", "11.0"), ("121", "12"), ("130", "13"))
)


NONE = "no library of `variants` in the recipe is for CUDA 13.0"
EACH = (("*cuda11*", "11"), ("*cuda12*", "12"), ("*cuda13*", "13"))
MINOR = (("*cuda11*", "11"), ("*cuda12*", "12.1"), ("*cuda13*", "13.0"))


@pytest.mark.parametrize(
    ("named", "foreign", "reason", "remark"),
    [
        ((), False, "the runtime of CUDA 12", ""),
        ((), True, "", ""),
        (EACH, False, "", "ops/libx_cuda118.so, ops/libx_cuda121.so"),
        (MINOR, True, "", "another CUDA: ops/libx_cuda118.so"),
        ((("*cuda1*", "12"),), False, NONE, "ops/libx_cuda118.so"),
        ((("libx_cuda1[12]*", "12"),), False, NONE, "libx_cuda121"),
    ],
)
def test_libraries_for_one_cuda_each(
    named: tuple[tuple[str, str], ...], foreign: bool, reason: str, remark: str
) -> None:
    claimed = claim(foreign=foreign, variants=tuple(Variant(pattern, cuda=cuda) for pattern, cuda in named))
    expect(check_linkage_in(wheel_facts(*PER_CUDA), claimed, CELL, table()), reason, remark)


def test_a_foreign_wheel_without_a_library_for_this_cuda_fails() -> None:
    proof = check_linkage_in(wheel_facts(*PER_CUDA[:2]), claim(foreign=True), CELL, table())
    assert "the runtime of CUDA" in proof.reason
