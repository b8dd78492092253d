"""The stable ABI of torch and that of Python: which functions a library uses, and since when they exist."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from builder.matrix.axes import AbiClass, Torch
from builder.proofs.static.stable_abi import check_abi3, check_stable
from builder.wheelfile.facts import Library
from builder.wheelfile.shims import shims
from tests.unit.proofs.make import FORWARD, claim, library, wheel_facts
from tools.make_shims import tabulate

CXX = "_ZNK2at6Tensor8data_ptrIfEEPT_v"
REPLACE = "_ZNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEE10_M_replaceEmmPKcm"


def uses(*undefined: str, **facts: Any) -> Library:
    return library(undefined=undefined, **facts)


@pytest.mark.parametrize(
    ("libraries", "floor", "error"),
    [
        pytest.param((uses("torch_call_dispatcher", "aoti_torch_get_dim"),), "2.10", "", id="C functions old enough"),
        pytest.param((uses("aoti_torch_get_dim"),), "2.9", "", id="the oldest measured"),
        pytest.param((uses("torch_c10_cuda_check_msg"),), "2.10", "", id="of libtorch_cuda"),
        pytest.param(
            (uses("torch_from_blob"),),
            "2.11",
            r"needs torch 2\.11 for torch_from_blob, but a wheel of the class `stable` must work with torch 2\.10",
            id="too new",
        ),
        pytest.param((uses("aoti_torch_aten_subtract_Tensor"),), "2.10", "", id="a name with a capital"),
        pytest.param(
            (uses("torch_call_dispatcher", "aoti_torch_cpu_Unknown"),),
            "2.10",
            "which no torch release",
            id="an unknown capital",
        ),
        pytest.param(
            (uses("torch_call_dispatcher", "torch_sorted"),),
            "2.10",
            "torch_sorted, which no torch release",
            id="unknown",
        ),
        pytest.param((uses(CXX),), "", r"C\+\+ ABI \(float\* at::Tensor::data_ptr<float>\(\) const\)", id="C++"),
        pytest.param((uses("_ZTVN3c105ErrorE"),), "", r"vtable for c10::Error", id="C++ data"),
        pytest.param((uses("PyModule_Create2", "_Py_NoneStruct"),), "", "", id="Python"),
        pytest.param((uses("getenv", "_Znwm", REPLACE, "cosf"),), "", "", id="C and C++ runtimes, without a version"),
        pytest.param(
            (uses("cudaMalloc", bound={"cudaMalloc": ("libcudart.so.13", "libcudart.so.13")}),),
            "",
            "",
            id="CUDA runtime",
        ),
        pytest.param((uses("cuLaunchKernel", needed=("libcuda.so.1",)),), "", "", id="driver"),
        pytest.param((uses("inflate", needed=("libz.so.1", "libtorch.so")),), "", "", id="a library without versions"),
        pytest.param(
            (uses("inflate", FORWARD, needed=("libz.so.1",)),),
            "",
            r"leaves ms_deform_attn_cuda_forward\(at::Tensor const&",
            id="own function, left out, beside a library without versions",
        ),
        pytest.param(
            (uses("inflate", needed=("libc.so.6", "libcudart.so.13", "libc10.so")),),
            "",
            "leaves inflate undefined",
            id="no library can have it",
        ),
        pytest.param((uses("cuLaunchKernel"),), "", "leaves cuLaunchKernel undefined", id="driver not linked"),
        pytest.param(
            (uses(FORWARD),), "", r"leaves ms_deform_attn_cuda_forward\(at::Tensor const&", id="own function, left out"
        ),
        pytest.param(
            (uses("helper"), library("ops/h.so", defined=("helper",))), "", "", id="own function in a second library"
        ),
        pytest.param((uses("sgemm_"),), "", "leaves sgemm_ undefined", id="exported by torch, not a C function of it"),
    ],
)
def test_stable(libraries: tuple[Library, ...], floor: str, error: str) -> None:
    proof = check_stable(wheel_facts(*libraries), claim(abi=AbiClass.STABLE, torch=Torch(2, 10, 0)))
    assert proof is not None
    assert proof.verdict == ("failed" if error else "passed"), proof.reason
    assert re.search(error, proof.reason)
    assert proof.evidence["floor"] == floor


@pytest.mark.parametrize("abi", [AbiClass.CPYTHON, AbiClass.ABI3])
def test_other_abi_classes_have_no_stable_proof(abi: AbiClass) -> None:
    assert check_stable(wheel_facts(uses(CXX)), claim(abi=abi)) is None


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
        proof = check_stable(wheel_facts(one), claim(abi=AbiClass.STABLE))
        assert proof is not None
        assert proof.verdict == "passed", proof.reason
        assert len(proof.evidence.get("remarks", ())) == remarks


def manylinux(python: str) -> str:
    return f"{python}-manylinux_2_28_x86_64"


@pytest.mark.parametrize(
    ("tag", "used", "abi", "error"),
    [
        pytest.param("cp310-abi3", ("PyModule_Create2",), AbiClass.ABI3, "", id="stable functions"),
        pytest.param("cp310-abi3", ("PyExc_ValueError",), AbiClass.ABI3, "", id="stable data"),
        pytest.param(
            "cp310-abi3", ("PyBuffer_Release",), AbiClass.ABI3, "PyBuffer_Release (3.11), which Python 3.10", id="newer"
        ),
        pytest.param("cp311-abi3", ("PyBuffer_Release",), AbiClass.ABI3, "", id="new enough"),
        pytest.param(
            "cp310-abi3", ("_PyThreadState_UncheckedGet",), AbiClass.ABI3, "_PyThreadState_UncheckedGet", id="private"
        ),
        pytest.param(
            "cp310-abi3", ("PyBuffer_Release",), AbiClass.CPYTHON, "which Python 3.10", id="the tag alone is a claim"
        ),
        pytest.param(
            "cp312-cp312", ("PyModule_Create2",), AbiClass.STABLE, "tagged cp312-cp312", id="claimed, not tagged"
        ),
        pytest.param("py3-none", (), AbiClass.STABLE, "", id="calls no Python"),
        pytest.param("cp315-abi3.abi3t", ("PyModule_Exec",), AbiClass.ABI3, "", id="new in 3.15"),
        pytest.param("cp310-abi3t", ("PyModule_Exec",), AbiClass.CPYTHON, "", id="abi3t begins with 3.15"),
        pytest.param("cp316-abi3t", ("_PyThreadState_UncheckedGet",), AbiClass.CPYTHON, "stable ABI does", id="abi3t"),
        pytest.param("cp310-abi3.abi3t", ("PyModule_Exec",), AbiClass.ABI3, "which Python 3.10 of", id="abi3 decides"),
    ],
)
def test_abi3(tag: str, used: tuple[str, ...], abi: AbiClass, error: str) -> None:
    python, tagged = tag.split("-")
    tags = tuple(manylinux(f"{python}-{each}") for each in tagged.split("."))
    proof = check_abi3(wheel_facts(library(undefined=used), tags=tags), claim(abi=abi))
    assert proof is not None
    assert proof.verdict == ("failed" if error else "passed")
    assert error in proof.reason


def test_oldest_of_two_tags_decides() -> None:
    tags = (manylinux("cp310-abi3"), manylinux("cp311-abi3"))
    proof = check_abi3(wheel_facts(library(undefined=("PyBuffer_Release",)), tags=tags), claim())
    assert proof is not None
    assert proof.verdict == "failed"


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
    assert proof is not None
    assert proof.verdict == ("failed" if error else "passed")
    assert error in proof.reason
