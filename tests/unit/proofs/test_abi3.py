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
            "cp310-abi3",
            ("PyBuffer_Release",),
            AbiClass.ABI3,
            "PyBuffer_Release (3.11), which Python 3.10",
            id="newer",
        ),
        pytest.param("cp311-abi3", ("PyBuffer_Release",), AbiClass.ABI3, "", id="new enough"),
        pytest.param(
            "cp310-abi3",
            ("_PyThreadState_UncheckedGet",),
            AbiClass.ABI3,
            "_PyThreadState_UncheckedGet",
            id="private",
        ),
        pytest.param(
            "cp310-abi3", ("PyBuffer_Release",), AbiClass.CPYTHON, "which Python 3.10", id="the tag alone is a claim"
        ),
        pytest.param(
            "cp312-cp312",
            ("PyModule_Create2",),
            AbiClass.STABLE,
            "tagged cp312-cp312",
            id="claimed, not tagged",
        ),
        pytest.param("py3-none", (), AbiClass.STABLE, "", id="calls no Python"),
    ],
)
def test_abi3(tag: str, used: tuple[str, ...], abi: AbiClass, error: str) -> None:
    proof = check_abi3(wheel_facts(library(undefined=used), tag=manylinux(tag)), claim(abi=abi))
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
