from __future__ import annotations

import pytest

from builder.matrix.axes import AbiClass
from builder.proofs.static.stable_abi import check_abi3
from tests.unit.proofs.make import claim, library, wheel_facts


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
