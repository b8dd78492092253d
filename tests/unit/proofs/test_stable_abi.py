"""The stable ABI of torch and that of Python: which functions a library uses, and since when they exist."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from builder.matrix.axes import AbiClass, Torch
from builder.proofs.static.stable_abi import check_abi3, check_stable
from builder.wheelfile.facts import Library
from builder.wheelfile.shims import shims
from tests.unit.proofs.make import FORWARD, claim, expect, library, wheel_facts
from tools.make_shims import tabulate

CXX = "_ZNK2at6Tensor8data_ptrIfEEPT_v"
REPLACE = "_ZNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEE10_M_replaceEmmPKcm"


def uses(*undefined: str, **facts: Any) -> Library:
    return library(undefined=undefined, **facts)


RUNTIME = {"cudaMalloc": ("libcudart.so.13", "libcudart.so.13")}
#: Libraries, the oldest torch with their functions, and the error.
STABLE: list[tuple[tuple[Library, ...], str, str]] = [
    ((uses("torch_call_dispatcher", "aoti_torch_get_dim"),), "2.10", ""),
    ((uses("aoti_torch_get_dim"),), "2.9", ""),  # the oldest measured
    ((uses("torch_c10_cuda_check_msg"),), "2.10", ""),
    ((uses("torch_from_blob"),), "2.11", r"needs torch 2\.11 for torch_from_blob, but .* must work with torch 2\.10"),
    ((uses("aoti_torch_aten_subtract_Tensor"),), "2.10", ""),
    ((uses("torch_call_dispatcher", "aoti_torch_cpu_Unknown"),), "2.10", "which no torch release"),
    ((uses("torch_call_dispatcher", "torch_sorted"),), "2.10", "torch_sorted, which no torch release"),
    ((uses(CXX),), "", r"C\+\+ ABI \(float\* at::Tensor::data_ptr<float>\(\) const\)"),
    ((uses("_ZTVN3c105ErrorE"),), "", r"vtable for c10::Error"),
    ((uses("PyModule_Create2", "_Py_NoneStruct"),), "", ""),
    ((uses("getenv", "_Znwm", REPLACE, "cosf"),), "", ""),  # C and C++ runtimes, without a version
    ((uses("cudaMalloc", bound=RUNTIME),), "", ""),
    ((uses("cuLaunchKernel", needed=("libcuda.so.1",)),), "", ""),
    ((uses("inflate", needed=("libz.so.1", "libtorch.so")),), "", ""),  # a library without versions
    ((uses("inflate", FORWARD, needed=("libz.so.1",)),), "", r"leaves ms_deform_attn_cuda_forward\(at::Tensor const&"),
    ((uses("inflate", needed=("libc.so.6", "libcudart.so.13", "libc10.so")),), "", "leaves inflate undefined"),
    ((uses("cuLaunchKernel"),), "", "leaves cuLaunchKernel undefined"),
    ((uses(FORWARD),), "", r"leaves ms_deform_attn_cuda_forward\(at::Tensor const&"),
    ((uses("helper"), library("ops/h.so", defined=("helper",))), "", ""),
    ((uses("sgemm_"),), "", "leaves sgemm_ undefined"),  # torch exports it, and it is no C function of torch
]


@pytest.mark.parametrize(("libraries", "floor", "error"), STABLE)
def test_stable(libraries: tuple[Library, ...], floor: str, error: str) -> None:
    proof = check_stable(wheel_facts(*libraries), claim(abi=AbiClass.STABLE, torch=Torch(2, 10, 0)))
    assert expect(proof, error).evidence["floor"] == floor


def test_other_abi_classes_have_no_stable_proof() -> None:
    assert check_stable(wheel_facts(uses(CXX)), claim(abi=AbiClass.ABI3)) is None


@pytest.mark.parametrize(
    ("name", "series", "kind"),
    [
        ("aoti_torch_get_current_cuda_stream", "2.9", "cuda"),
        ("torch_call_dispatcher", "2.10", "cpu"),
        ("torch_c10_cuda_check_msg", "2.10", "cuda"),
        ("torch_from_blob", "2.11", "cpu"),
        ("torch_library_def_with_tags", "2.12", "cpu"),
        ("torch_generator_get_device", "2.13", "cpu"),
        ("torch_has_storage", "2.14", "cpu"),
        ("torch_dtype_to_pyobject", "2.15", "cpu"),
    ],
)
def test_measured_table(name: str, series: str, kind: str) -> None:
    assert (shims()[name].series, shims()[name].kind) == (series, kind)


def test_table_lists_first_and_last_appearances() -> None:
    measured = {
        Torch(2, 11, 0): {"cpu": {"torch_a", "torch_b"}, "cuda": {"torch_x"}},
        Torch(2, 9, 1): {"cpu": {"torch_a"}, "cuda": {"torch_old"}},
        Torch(2, 10, 0): {"cpu": {"torch_a"}, "cuda": {"torch_x"}},
    }
    assert tabulate(measured) == {
        "since": {
            "2.9": {"cpu": ["torch_a"], "cuda": ["torch_old"]},
            "2.10": {"cuda": ["torch_x"]},
            "2.11": {"cpu": ["torch_b"]},
        },
        "gone": {"2.10": {"cuda": ["torch_old"]}},
    }


def test_functions_of_cuda_are_a_matter_of_the_linkage() -> None:
    """vLLM 0.33.0 calls cuBLAS, and links libtorch_cuda alone."""
    calls = uses("aoti_torch_get_current_device_index", "cublasLtCreate", "cudnnCreate", needed=("libtorch_cuda.so",))
    for needed, remarks in (((), 1), (("libcublasLt.so.13",), 0)):
        one = replace(calls, needed=(*calls.needed, *needed))
        proof = expect(check_stable(wheel_facts(one), claim(abi=AbiClass.STABLE)))
        assert len(proof.evidence.get("remarks", ())) == remarks


def manylinux(python: str) -> str:
    return f"{python}-manylinux_2_28_x86_64"


UNCHECKED = "_PyThreadState_UncheckedGet"
ABI3: list[tuple[str, str, AbiClass, str]] = [
    ("cp310-abi3", "PyModule_Create2", AbiClass.ABI3, ""),
    ("cp310-abi3", "PyExc_ValueError", AbiClass.ABI3, ""),
    ("cp310-abi3", "PyBuffer_Release", AbiClass.ABI3, "PyBuffer_Release (3.11), which Python 3.10"),
    ("cp311-abi3", "PyBuffer_Release", AbiClass.ABI3, ""),
    ("cp310-abi3", UNCHECKED, AbiClass.ABI3, UNCHECKED),
    ("cp310-abi3", "PyBuffer_Release", AbiClass.CPYTHON, "which Python 3.10"),  # the tag alone is a claim
    ("cp312-cp312", "PyModule_Create2", AbiClass.STABLE, "tagged cp312-cp312"),
    ("py3-none", "", AbiClass.STABLE, ""),
    ("cp315-abi3.abi3t", "PyModule_Exec", AbiClass.ABI3, ""),
    ("cp310-abi3t", "PyModule_Exec", AbiClass.CPYTHON, ""),  # abi3t begins with 3.15
    ("cp316-abi3t", UNCHECKED, AbiClass.CPYTHON, "stable ABI does"),
    ("cp310-abi3.abi3t", "PyModule_Exec", AbiClass.ABI3, "which Python 3.10 of"),
]


@pytest.mark.parametrize(("tag", "used", "abi", "error"), ABI3)
def test_abi3(tag: str, used: str, abi: AbiClass, error: str) -> None:
    python, tagged = tag.split("-")
    tags = tuple(manylinux(f"{python}-{each}") for each in tagged.split("."))
    proof = check_abi3(wheel_facts(library(undefined=(used,) if used else ()), tags=tags), claim(abi=abi))
    expect(proof, error)


def test_oldest_of_two_tags_decides() -> None:
    tags = (manylinux("cp310-abi3"), manylinux("cp311-abi3"))
    proof = check_abi3(wheel_facts(library(undefined=("PyBuffer_Release",)), tags=tags), claim())
    expect(proof, "PyBuffer_Release")


def test_no_proof_without_an_abi3_tag_or_claim() -> None:
    assert check_abi3(wheel_facts(library(undefined=("PyBuffer_Release",))), claim()) is None


@pytest.mark.parametrize(
    ("name", "used", "error"),
    [
        ("_C.abi3t.so", "PyModule_Exec", ""),
        ("_C.abi3-x86_64-linux-gnu.so", "PyModule_Exec", ""),
        ("_C.abi3.so", "PyModule_Exec", "PyModule_Exec (3.15), which Python 3.10"),
        ("_C.abi3t.so", "PyModuleDef_Init", "define Py_TARGET_ABI3T=0x030f0000, and export PyModExport__C"),
        ("_C.abi3.so", "PyModuleDef_Init", ""),
    ],
)
def test_a_file_that_only_new_pythons_find(name: str, used: str, error: str) -> None:
    facts = wheel_facts(library(f"ops/{name}", undefined=(used,)), tag=manylinux("cp310-abi3"))
    proof = check_abi3(facts, claim(abi=AbiClass.ABI3))
    expect(proof, error)
