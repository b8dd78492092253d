from __future__ import annotations

from dataclasses import replace

import pytest

from builder.matrix.axes import Arch
from builder.matrix.config import Variant
from builder.proofs.static.device_code import check_device_code
from builder.publish.index.new_wheel import gpu_code
from builder.wheelfile.facts import Library
from tests.unit.proofs.make import claim, expect, gpu_library, library, wheel_facts


@pytest.mark.parametrize(
    ("libraries", "archs", "missing"),
    [
        ((gpu_library("sm_90"),), "9.0", ""),  # the same
        ((gpu_library("sm_80", "sm_90"),), "9.0", ""),  # more than claimed
        ((gpu_library("sm_90a"),), "9.0", ""),  # sm_90a runs on every 9.0
        ((gpu_library("sm_90"),), "9.0a", "sm_90a"),  # 9.0a is not 9.0
        ((gpu_library("sm_80"),), "8.6", "sm_86"),  # older code does not satisfy the claim
        ((gpu_library("sm_80", ptx=("compute_80",)),), "8.0 9.0", "sm_90"),  # PTX is not machine code
        ((gpu_library("sm_80"),), "8.0 9.0 12.0", "sm_90, sm_120"),  # all that are missing
        ((gpu_library("sm_90", ptx=("compute_90",)),), "9.0+PTX", ""),  # PTX
        ((gpu_library("sm_90"),), "9.0+PTX", "compute_90"),  # no PTX
        ((gpu_library("sm_90a", ptx=("compute_90a",)),), "9.0+PTX", "compute_90"),  # PTX tied to one GPU
        ((gpu_library("sm_90"), library()), "9.0", ""),  # library without GPU code does not matter
        ((gpu_library("sm_90"), gpu_library("sm_80", path="ops/b.so")), "9.0", "ops/b.so"),  # one of two
        ((gpu_library("sm_90"), gpu_library("sm_50", path="ops.libs/b.so")), "9.0", ""),  # a copied one
        ((gpu_library(),), "9.0", "sm_90"),  # a section with nothing in it
        ((library(),), "9.0", "no library contains GPU code"),  # none at all
    ],
)
def test_device_code(libraries: tuple[Library, ...], archs: str, missing: str) -> None:
    claimed = tuple(Arch.parse(arch) for arch in archs.split())
    proof = expect(check_device_code(wheel_facts(*libraries), claim(archs=claimed)), missing)
    assert proof.evidence["claimed"] == archs.split()


@pytest.mark.parametrize(
    ("archs", "beyond"),
    [
        ("8.0 9.0+PTX", {}),
        ("9.0+PTX", {"sm_80": 100}),
        ("8.0 9.0", {"compute_90": 5}),
        ("8.0 9.0a+PTX", {}),
        ("12.0", {"sm_80": 100, "sm_90": 40, "compute_90": 5}),
    ],
)
def test_code_beyond_the_claim_is_measured(archs: str, beyond: dict[str, int]) -> None:
    code = {"sm_80": 70, "sm_90": 40, "compute_90": 5}
    libraries = (gpu_library(*code, gpu_code=code), gpu_library("sm_80", path="ops/b.so", gpu_code={"sm_80": 30}))
    proof = check_device_code(wheel_facts(*libraries), claim(archs=tuple(map(Arch.parse, archs.split()))))
    assert proof.evidence.get("beyond", {}) == beyond


def test_no_gpu_code_where_none_is_required() -> None:
    proof = check_device_code(wheel_facts(library()), claim(cuda_required=False))
    assert (proof.verdict, proof.reason) == ("passed", "no GPU code, which the recipe allows (`cuda: optional`)")
    foreign = check_device_code(wheel_facts(library()), replace(claim(cuda_required=False), foreign=True))
    assert (foreign.verdict, foreign.reason) == ("passed", "no GPU code"), "a wheel of others has no recipe"


@pytest.mark.parametrize(("has", "dropped"), [(("sm_75",), True), (("sm_52",), True), (("sm_75", "sm_80"), False)])
def test_the_default_of_nvcc_has_a_cause_of_its_own(has: tuple[str, ...], dropped: bool) -> None:
    reason = check_device_code(wheel_facts(gpu_library(*has)), claim(archs=(Arch(9, 0),))).reason
    assert ("nvcc's default: torch names no architecture if the letters `arch` are in an option" in reason) is dropped


def test_affected_gpus_and_the_architectures_are_named() -> None:
    archs = (Arch(8, 0), Arch(12, 0))
    reason = check_device_code(wheel_facts(gpu_library("sm_80")), claim(archs=archs)).reason
    assert "sm_120 (RTX PRO 6000 Blackwell, RTX 50 series (5090))" in reason
    assert "A100" not in reason
    assert "`override_architectures: true`" in reason
    wheel = wheel_facts(gpu_library("sm_80", "sm_100"), gpu_library("sm_80", path="ops/b.so", ptx=("compute_80",)))
    assert check_device_code(wheel, claim(archs=archs[:1])).reason == "compute_80 sm_80 sm_100"


SM90, SM100 = gpu_library("sm_90", path="ops/sm90/_C.so"), gpu_library("sm_100", path="ops/sm100/_C.so")
SPLIT = (Variant("ops/sm90/*", arch=Arch(9, 0)), Variant("ops/sm100/*", arch=Arch(10, 0)))


@pytest.mark.parametrize(
    ("libraries", "variants", "archs", "missing"),
    [
        ((SM90, SM100), (), "9.0 10.0", "if the library is for one architecture only, name it in `variants`"),
        ((SM90, SM100), SPLIT, "9.0 10.0", ""),
        ((SM90, SM100), SPLIT, "9.0", ""),
        ((SM90, SM100), SPLIT, "9.0 10.0 12.0", "no library of `variants` in the recipe is for sm_120"),
        ((SM90, gpu_library("sm_90", path=SM100.path)), SPLIT, "9.0 10.0", "ops/sm100/_C.so has no machine code"),
        ((SM90, SM100, gpu_library("sm_90")), SPLIT, "9.0 10.0", "ops/_C_cuda.so has no machine code for sm_100"),
        ((SM90, SM100), SPLIT, "9.0 10.0+PTX", "ops/sm100/_C.so has no PTX compute_100"),
        ((SM90, SM100), (Variant("*/sm90/*", cuda="13"), Variant("*/sm100/*", cuda="12")), "9.0", ""),
        ((SM90, SM100), (Variant("*/sm90/*", cuda="12"), Variant("*/sm100/*", cuda="13")), "9.0", "sm100/_C.so has no"),
    ],
)
def test_libraries_for_one_architecture_or_cuda(
    libraries: tuple[Library, ...], variants: tuple[Variant, ...], archs: str, missing: str
) -> None:
    claimed = claim(archs=tuple(map(Arch.parse, archs.split())), variants=variants)
    expect(check_device_code(wheel_facts(*libraries), claimed), missing)


def test_libraries_for_one_architecture_each_count_as_one() -> None:
    proof = check_device_code(wheel_facts(SM90, SM100), claim(variants=SPLIT))
    assert gpu_code([proof]) == ("sm_100", "sm_90")


def test_code_of_an_unknown_kind_is_said() -> None:
    wheel = wheel_facts(gpu_library("sm_80", gpu_code={"sm_80": 1, "lto_90": 1, "kind77_120f": 1}))
    proof = check_device_code(wheel, claim(archs=(Arch(8, 0),)))
    assert (proof.verdict, proof.reason) == ("passed", "sm_80 lto_90 kind77_120f")
    assert proof.evidence["others"] == {"ops/_C_cuda.so": ["lto_90", "kind77_120f"]}
    assert "ops/_C_cuda.so has GPU code that buildfarm does not know (kind 77 for 120f)" in proof.evidence["remarks"][0]


def test_the_device_link_drops_ptx() -> None:
    archs = (Arch(9, 0, ptx=True),)
    for linked in (False, True):
        reason = check_device_code(wheel_facts(gpu_library("sm_90", device_link=linked)), claim(archs=archs)).reason
        assert ("the device link of relocatable code drops PTX, so leave out +PTX" in reason) == linked
