from __future__ import annotations

import re
from dataclasses import replace

import pytest

from builder.proof import Check, Verdict
from builder.proofs.static.contents import check_grafted, check_payload
from builder.records.cuda_sources import CudaSources
from builder.wheelfile.facts import Library
from tests.unit.proofs.make import PROVIDED, claim, gpu_library, library, wheel_facts


@pytest.mark.parametrize(
    ("libraries", "required", "verdict", "says"),
    [
        pytest.param((gpu_library("sm_90"),), True, "passed", "1 library", id="GPU code"),
        pytest.param((library(), gpu_library("sm_90")), True, "passed", "2 libraries", id="GPU code in one of two"),
        pytest.param((library(),), False, "passed", "", id="CPU only is allowed"),
        pytest.param(
            (library(),),
            True,
            "failed",
            r"no GPU code in _C\.so.*is_available.*FORCE_CUDA",
            id="CUDA left out",
        ),
        pytest.param(
            (),
            True,
            "failed",
            r"the wheel \(py3-none-any\) contains no library: the build compiled no source",
            id="no library",
        ),
        pytest.param((), False, "failed", "ext_modules", id="no library, CPU"),
        pytest.param(
            (library(), gpu_library("sm_90", path="ops.libs/libnvjpeg-1a2b3c4d.so.13")),
            True,
            "failed",
            "no GPU code",
            id="GPU code only in a copied library",
        ),
        pytest.param(
            (library("ops.libs/libz-1a2b3c4d.so.1"),),
            True,
            "failed",
            "contains no library",
            id="only a copied library",
        ),
    ],
)
def test_payload(libraries: tuple[Library, ...], required: bool, verdict: str, says: str) -> None:
    tag = "cp312-cp312-manylinux_2_28_x86_64" if libraries else "py3-none-any"
    proof = check_payload(wheel_facts(*libraries, tag=tag), claim(cuda_required=required))
    assert (proof.check, proof.verdict, proof.cell) == (Check.PAYLOAD, verdict, None)
    assert re.search(says, proof.reason)


@pytest.mark.parametrize(
    ("path", "soname", "grafted"),
    [
        pytest.param("ops/_C.so", "", False, id="its own"),
        pytest.param("ops.libs/libjpeg-1a2b3c4d.so.8", "libjpeg-1a2b3c4d.so.8", False, id="not provided"),
        pytest.param("ops/libtorchaudio.so", "", False, id="a name that only begins like torch"),
        pytest.param("ops/libtorch_cpu.so", "", True, id="torch"),
        pytest.param("ops/libc10_cuda.so", "", True, id="c10, not in `provided`"),
        pytest.param("ops.libs/libcudart-1a2b3c4d.so.13.0.96", "", True, id="CUDA under auditwheel's name"),
        pytest.param("ops.libs/libcudart.faf08d9a.so.13", "", True, id="CUDA under torchvision's name"),
        pytest.param("ops.libs/libcudart-1a2b3c4d.so.12.4.127", "", True, id="different CUDA"),
        pytest.param("ops/libhidden.so", "libcudart.so.13", True, id="CUDA under a name that hides it"),
        pytest.param("ops.libs/libgomp-1a2b3c4d.so.1.0.0", "", True, id="OpenMP, which torch provides"),
        pytest.param("ops/libcuda.so.1", "", True, id="the driver"),
        pytest.param("ops/libnvidia-ml.so.1", "", True, id="the driver's NVML"),
    ],
)
def test_grafted(path: str, soname: str, grafted: bool) -> None:
    proof = check_grafted(wheel_facts(gpu_library("sm_90"), library(path, soname=soname)), PROVIDED)
    assert proof.verdict is (Verdict.FAILED if grafted else Verdict.PASSED)
    assert proof.evidence["grafted"] == ([path] if grafted else [])
    assert (path in proof.reason) is grafted


@pytest.mark.parametrize(
    ("path", "grafted"),
    [
        pytest.param("ops.libs/libgomp-24e2ab19.so.1.0.0", False, id="different hash"),
        pytest.param("ops.libs/libgomp-a34b3233.so.1", True, id="same hash"),
    ],
)
def test_library_that_torch_itself_grafted_is_provided_under_that_name_only(path: str, grafted: bool) -> None:
    """torch 2.4 from the default index holds its own OpenMP library, renamed by auditwheel."""
    proof = check_grafted(wheel_facts(gpu_library("sm_90"), library(path)), frozenset({"libgomp-a34b3233.so.1"}))
    assert proof.evidence["grafted"] == ([path] if grafted else [])


def test_torch_and_cuda_count_as_grafted_without_knowledge_of_the_cell() -> None:
    proof = check_grafted(wheel_facts(library("ops.libs/libtorch_cuda-1a2b3c4d.so")), frozenset())
    assert proof.verdict is Verdict.FAILED


@pytest.mark.parametrize(
    ("sources", "says"),
    [
        (CudaSources(2, ("csrc/a.cu",)), r"no GPU code in _C\.so: csrc/a\.cu was never compiled \(is it in `sources`"),
        (CudaSources(2, ("a.cu", "b.cu")), r"a\.cu, b\.cu were never compiled \(are they in `sources`"),
        (CudaSources(1, ("a.cu",), "setup.py"), r"setup\.py calls torch\.cuda\.is_available\(\).*`assume_cuda: true`"),
        (CudaSources(0), "the source has no .cu file"),
        (CudaSources(1), "every .cu file of the source was compiled"),
    ],
)
def test_a_wheel_without_gpu_code_is_explained_by_its_build(sources: CudaSources, says: str) -> None:
    proof = check_payload(wheel_facts(library()), replace(claim(), cuda_sources=sources))
    assert proof.verdict == "failed"
    assert re.search(says, proof.reason), proof.reason
    assert "FORCE_CUDA" not in proof.reason
