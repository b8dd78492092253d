"""`buildfarm smoke --here`: run the op gate on what is installed in the current environment."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from builder.commands.current_environment import CurrentEnvironment, current_environment, installed_version
from builder.commands.smoke_targets import selected_recipes
from builder.errors import BuildfarmError, Code, MissingToolError, NothingSelectedError, UsageError
from builder.gate.outcome import FAILED, Answer
from builder.log import print_line
from builder.matrix.axes import Cell, Cuda, Python, Torch
from builder.matrix.config import Recipe, Selection
from builder.matrix.load import load_matrix, load_recipes
from builder.proofs.cells.op_gate import gate_proofs, run_gate
from builder.resources import measure_resources
from builder.result import SmokeResult
from builder.wheels.build_scripts.cuda_packages import torch_cuda


def smoke_here(matrix: Path, select: Selection) -> list[SmokeResult]:
    """Test the installed extensions of the matrix. Needs no network, Docker, uv or store.

    The current environment is $VIRTUAL_ENV, else $CONDA_PREFIX, else the one that runs this command.
    Raises UsageError for an unknown extension, NothingSelectedError when none is installed, MissingToolError when torch
    is missing or does not import, BuildfarmError when the gate ends without an answer.
    """
    environment = current_environment()
    recipes = selected_recipes(load_recipes(load_matrix(matrix)), select)
    versions = {recipe.name: installed_version(environment.site_packages, recipe.makes) for recipe in recipes}
    installed = [recipe for recipe in recipes if versions[recipe.name]]
    for name in select.extensions:
        if not versions[name]:
            raise NothingSelectedError(
                f"{name} is not installed in this environment", Code.PACKAGE_MISSING, where=str(environment.prefix)
            )
    if not installed:
        raise NothingSelectedError(
            "no extension of the matrix is installed in this environment",
            Code.PACKAGE_MISSING,
            where=str(environment.prefix),
        )
    # The gate runs for a minute, so a CPU build of torch is reported before it. The gate reports a missing torch.
    if (environment.site_packages / "torch" / "version.py").is_file() and not torch_cuda(environment.site_packages):
        raise _cpu_build("the torch of this environment")
    print_line(f"environment: {environment.prefix}")
    results = []
    for recipe in installed:
        answer = _run_gate(environment, recipe)
        cell = _cell_of(answer)
        name = f"{recipe.name} {versions[recipe.name]}"
        results.append(SmokeResult(name, cell, tuple(gate_proofs(answer, "", cell)), answer))
    return results


def _run_gate(environment: CurrentEnvironment, recipe: Recipe) -> Answer:
    with tempfile.TemporaryDirectory(prefix="buildfarm-smoke-") as scratch:
        log = Path(scratch, "log")
        answer = run_gate(
            environment.interpreter,
            recipe,
            Path(scratch, "gate"),
            jobs=measure_resources().cores,
            log=log,
            owner=f"smoke-here-{os.getpid()}",
        )
        if isinstance(answer, str):
            output = log.read_text(errors="replace").strip().splitlines()
            sentence = answer.removesuffix(f"; the full output is in {log}")  # the log is deleted with its folder
            raise BuildfarmError(f"{recipe.name}: {sentence}", Code.GATE_STOPPED, hints=output[-3:])
    return answer


def _cell_of(answer: Answer) -> Cell:
    """The cell that the gate ran in, by the versions that torch and Python reported."""
    where = answer.where
    if "torch" not in where:
        failures = (outcome.reason for outcome in answer.outcomes if outcome.verdict == FAILED)
        reason = next(failures, "the gate stopped before it imported torch")
        raise MissingToolError(f"torch cannot be imported in this environment: {reason}", Code.NO_TORCH, where="--here")
    release = str(where["torch"]).partition("+")[0]
    python = ".".join(str(where["python"]).split(".")[:2])
    cuda = str(where.get("cuda") or "")
    if not cuda:
        raise _cpu_build(f"torch {where['torch']} of this environment")
    return Cell(Torch.parse(release), Cuda.parse(cuda), Python.parse(python))


def _cpu_build(torch: str) -> UsageError:
    return UsageError(
        f"{torch} is a CPU build, so it matches no cell: every cell has CUDA",
        Code.NO_TORCH,
        where="--here",
        hints=[
            "run `buildfarm smoke --ext NAME --pack gate.pyz`, then `python gate.pyz` here, which works with any torch"
        ],
    )
