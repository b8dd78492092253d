"""The digest: each input that can change the wheel changes it, and who is served does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from builder.matrix.axes import AbiClass, Arch, Cell, Cuda, Python, Torch
from builder.matrix.config import AbiRule, Recipe
from builder.matrix.plan import Build
from builder.records import Part, Toolchain
from builder.wheels import job as digests
from builder.wheels.job import build_digest, required_torch, torch_floor, torch_window
from tests.unit.matrix import make
from tests.unit.wheels import make_record

BUILD = replace(make_record.BUILD, archs=(Arch(9, 0),))
TOOLCHAIN = make_record.TOOLCHAIN


def digest(
    build: Build = BUILD, recipe: Recipe | None = None, toolchain: Toolchain = TOOLCHAIN, source: str = "s" * 64
) -> str:
    return build_digest(build, recipe or make.recipe("ops"), toolchain, source)


def test_the_same_inputs_have_the_same_name() -> None:
    assert digest() == digest()
    assert len(digest()) == 64


INPUTS: list[tuple[str, dict[str, Any]]] = [
    ("build", {"extension": "other"}),
    ("build", {"version": "1.1"}),
    ("build", {"abi": AbiClass.ABI3}),
    ("build", {"abi": AbiClass.STABLE}),
    ("build", {"torch": Torch(2, 11, 1)}),
    ("build", {"cuda": Cuda(13, 2)}),
    ("build", {"pythons": (Python(3, 13),)}),
    ("build", {"archs": (Arch(9, 0, ptx=True),)}),
    ("build", {"archs": (Arch(8, 0), Arch(9, 0))}),
    ("recipe", {"env": {"WITH_X": "1"}}),
    ("recipe", {"build_requires": ("pybind11",)}),
    ("recipe", {"requires": ("numpy>=1.26",)}),
    ("recipe", {"assume_cuda": True}),
    ("recipe", {"override_architectures": True}),
    ("recipe", {"config_settings": {"--global-option": ("--cuda_ext",)}}),
    ("recipe", {"requires_torch": "source"}),
    ("toolchain", {"executor": "docker"}),
    ("toolchain", {"python": Python(3, 13)}),
    ("toolchain", {"others": {**TOOLCHAIN.others, Part.CXX: "g++ 13.3.0"}}),
    ("toolchain", {"packages": ("ninja==1.12", "torch==2.11.0")}),
]


@pytest.mark.parametrize(("of", "change"), INPUTS, ids=str)
def test_what_can_change_the_wheel_is_an_input(of: str, change: dict[str, Any]) -> None:
    inputs: dict[str, Any] = {"build": BUILD, "recipe": make.recipe("ops"), "toolchain": TOOLCHAIN}
    assert digest(**{of: replace(inputs[of], **change)}) != digest()


def test_source_and_the_format_of_builds_are_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    before = digest()
    assert digest(source="t" * 64) != before
    monkeypatch.setattr(digests, "BUILD_FORMAT", 0)
    assert digest() != before


def test_who_is_served_and_how_it_is_proven_is_none() -> None:
    more = (*BUILD.serves, Cell.parse("torch2.11.0-cu130-cp313"))
    assert digest(replace(BUILD, serves=more)) == digest()
    proven = replace(make.recipe("ops"), imports=("ops.more",), companions=("decord",), memory_per_job=1, summary="x")
    assert digest(recipe=proven) == digest()


@pytest.mark.parametrize(
    ("abi", "window", "floor"),
    [
        (AbiClass.CPYTHON, "torch==2.11.*", Torch(2, 11, 0)),
        (AbiClass.ABI3, "torch==2.11.*", Torch(2, 11, 0)),
        (AbiClass.STABLE, "torch>=2.10", Torch(2, 10, 0)),
    ],
)
def test_the_torch_a_wheel_may_stand_beside(abi: AbiClass, window: str, floor: Torch) -> None:
    build, recipe = replace(BUILD, abi=abi), replace(make.recipe("ops"), abi=(AbiRule(abi),))
    assert (torch_window(build, recipe), torch_floor(build, recipe)) == (window, floor)
    assert required_torch(build, recipe) == window
    assert required_torch(build, replace(recipe, requires_torch="source")) == ""


@pytest.mark.parametrize(
    ("specifier", "window"), [(">=2.10", "torch>=2.10"), (">=2.12", "torch>=2.12"), (">=2.8", "torch>=2.10")]
)
def test_the_oldest_torch_of_a_stable_wheel_is_that_of_its_rule(specifier: str, window: str) -> None:
    rules = (AbiRule(AbiClass.STABLE, specifier), AbiRule(AbiClass.CPYTHON))
    build, recipe = replace(BUILD, abi=AbiClass.STABLE), replace(make.recipe("ops"), abi=rules)
    assert torch_window(build, recipe) == window
