"""On a machine with a GPU: the gate finds each defect of a CUDA kernel, and passes correct kernels.

Needs nvcc. If the Python of the tests has torch, this torch is used; else torch 2.11 is installed. CI has no GPU.
"""

import importlib.util
import json
import os
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from builder.gate.check_table import CHECKS
from builder.gate.draft.result import CALLED, Drafts
from builder.gate.outcome import FAILED, NOT_RUN, PASSED, Spec
from builder.gate.system import nvidia
from tests.conftest import lacking, run
from tests.fixtures.gate_env import (
    GateRun,
    build_gpu_wheel,
    build_wheel,
    cases,
    environment_beside,
    make_environment,
    outcome_text,
    pack_gate,
    run_gate,
)

JOBS = min(8, len(os.sched_getaffinity(0)))
GPUS = nvidia.smi(("name", "compute_cap"))

pytestmark = [pytest.mark.network, pytest.mark.slow, pytest.mark.skipif(not GPUS, reason="needs a GPU")]

GPU = tuple(check for check in CHECKS if check.startswith("gpu-"))
#: Checks that run on the GPU for an op that has no CPU kernel.
EXECUTES = ("values", "gradients", "layouts", "repeat", "opcheck", "fake", "export", "compile")


@dataclass(frozen=True)
class Defect:
    """A defect of an op of `sample_gpu`."""

    op: str
    check: str  # the check that must fail
    pattern: str  # a regular expression that the reason must match
    also: tuple[str, ...] = ()  # checks that may fail too because of the same defect


DEFECTS = [
    Defect("wrong_value", "gpu-values", "expected"),
    Defect("wrong_gradient", "gpu-values", "gradient"),
    # A kernel on the default stream is not captured, so a replay does not run it.
    Defect("wrong_stream", "gpu-stream", "getCurrentCUDAStream", ("gpu-graph",)),
    Defect("backward_stream", "gpu-stream", "gradient 0.*getCurrentCUDAStream", ("gpu-graph",)),
    Defect("synchronises", "gpu-graph", "cannot be captured.*Do not synchronise"),
    Defect("reads_on_host", "gpu-graph", "cannot be captured"),
    Defect("past_end", "gpu-sanitizer", r"Invalid __global__ read of size 4 bytes.*twice"),
    Defect("writes_nowhere", "gpu-values", "illegal memory access|misaligned", GPU),
    Defect("other_gpu", "gpu-values", "no kernel image", GPU),
    Defect("only_cuda_wrong", "values", "expected", (*EXECUTES, "gpu-values")),
]


@pytest.fixture(scope="module")
def python(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with torch, `sample_gpu` and `sample_correct`."""
    nvcc = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if nvcc is None:
        lacking("nvcc is not on PATH")
    folder = tmp_path_factory.mktemp("gpu")
    arch = GPUS[0]["compute_cap"].replace(".", "")
    wheels = [
        build_gpu_wheel(folder, nvcc, arch, "80" if arch != "80" else "90"),
        build_wheel(folder, "sample_correct"),
        build_wheel(folder, "sample_defective"),
        build_wheel(folder, "sample_companion"),
    ]
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return make_environment(store, folder / "environment", "2.11.0", "3.12", wheels)
    return environment_beside(Path(sys.executable), Path(found.origin).parents[1], folder / "environment", wheels)


@pytest.fixture(scope="module")
def defective(python: Path, tmp_path_factory: pytest.TempPathFactory) -> GateRun:
    """One run of the gate on all ops of `sample_gpu`."""
    spec = Spec("sample_gpu", ["sample_gpu"], jobs=JOBS)
    return run_gate(pack_gate(python, tmp_path_factory.mktemp("gate"), spec, cases("gpu"), gpus=True))


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.op)
def test_a_defect_is_found_and_named(defective: GateRun, defect: Defect) -> None:
    outcomes = defective.of(f"sample_gpu::{defect.op}", defect.check)
    failed = [outcome for outcome in outcomes if outcome.verdict == FAILED]
    assert failed, outcomes
    assert re.search(defect.pattern, failed[0].reason), failed[0].reason
    assert len(failed[0].reason) < 600, failed[0].reason


def test_nothing_else_fails(defective: GateRun) -> None:
    """A kernel that corrupts the CUDA context of its process does not disturb the others."""
    allowed = {(f"sample_gpu::{one.op}", check) for one in DEFECTS for check in (one.check, *one.also)}
    others = [one for one in defective.failures if (one.op, one.check) not in allowed]
    assert not others, outcome_text(others)


@pytest.mark.parametrize("op", ["right", "only_cuda"])
def test_correct_kernels_pass_each_check(defective: GateRun, op: str) -> None:
    """`gpu-device` needs a second GPU, and the check `memory` runs only on the CPU."""
    outcomes = {outcome.check: outcome for outcome in defective.of(f"sample_gpu::{op}") if outcome.case == "plain"}
    not_passed = {check: one.reason for check, one in outcomes.items() if one.verdict != PASSED}
    expected = {"gpu-device"} if len(GPUS) < 2 else set()
    expected |= {"memory"} if op == "only_cuda" else set()
    assert set(not_passed) == expected, not_passed
    assert {*GPU, *EXECUTES} <= set(outcomes)


def test_the_gate_names_the_gpu_and_leaves_nothing(defective: GateRun) -> None:
    (gpu, *_) = defective.answer.where["gpus"]
    assert (gpu["name"], gpu["sm"]) == (GPUS[0]["name"], f"sm_{GPUS[0]['compute_cap'].replace('.', '')}")
    assert {"driver", "memory"} <= set(gpu)
    assert defective.files == ()
    assert defective.ran.code == 1


def test_a_correct_extension_passes_on_a_gpu(python: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Ops of every kind, with kernels written in PyTorch."""
    libraries = {"libkernels": ["CPU", "CUDA"]}
    spec = Spec("sample_correct", ["sample_correct"], companions=["sample_defective"], libraries=libraries, jobs=JOBS)
    done = run_gate(pack_gate(python, tmp_path_factory.mktemp("gate"), spec, cases("correct"), gpus=True))
    assert not done.failures, done.failure_text()
    gpu = [outcome for outcome in done.answer.outcomes if outcome.check in GPU]
    assert {(one.op, one.check) for one in gpu if one.verdict == PASSED}
    reasons = {one.reason for one in gpu if one.verdict == NOT_RUN}
    assert not [reason for reason in reasons if "no GPU" in reason], reasons


def test_a_draft_calls_an_op_that_has_only_a_cuda_kernel(python: Path, tmp_path: Path) -> None:
    gate = pack_gate(python, tmp_path / "gate", Spec("sample_gpu", ["sample_gpu"]), None, gpus=True)
    done = run(*gate.command, "--draft", cwd=gate.folder, env=gate.env)
    drafts = Drafts.from_json(json.loads((gate.folder / "answer.json").read_text()))
    states = {one.op: (one.state, one.device) for one in drafts.drafts}
    assert states["sample_gpu::only_cuda"] == (CALLED, "cuda"), done.all
    assert states["sample_gpu::right"] == (CALLED, "cpu"), done.all
