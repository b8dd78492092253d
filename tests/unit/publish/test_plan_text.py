"""The text of `buildfarm plan`."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from builder.matrix.axes import AbiClass, Arch, Cell, Cuda, Platform, Python, Torch
from builder.matrix.config import Selection
from builder.matrix.load import read_plan
from builder.matrix.plan import Build, Plan, Skip, summarise_skips
from builder.publish.plan_text import architectures_hint, dry_run_json, dry_run_text, plan_text
from tests.conftest import ROOT

CELLS = tuple(Cell.parse(f"torch2.11.0-cu130-cp3{minor}") for minor in (11, 12))
BUILD = Build(
    "ops", "1.0", AbiClass.ABI3, Torch(2, 11, 0), Cuda(13, 0), (Python(3, 11),), (Arch(8, 0), Arch(9, 0, ptx=True)),
    Platform.LINUX_X86_64, CELLS,
)  # fmt: skip
OTHER = Build(
    "more", "2.0", AbiClass.ABI3, Torch(2, 11, 0), Cuda(13, 0), (Python(3, 11),), (Arch(9, 0),),
    Platform.LINUX_X86_64, CELLS[:1],
)  # fmt: skip


def skip(python: Python, extension: str = "", platform: Platform = Platform.LINUX_X86_64) -> Skip:
    return Skip(Torch(2, 2, 2), Cuda(12, 1), python, extension, "code", "there is no such wheel", platform)


def test_builds_and_skipped_cells() -> None:
    alone = replace(BUILD, extension="one", abi=AbiClass.CPYTHON, serves=CELLS[:1])
    skips = (
        skip(Python(3, 12), "ops"),
        skip(Python(3, 14), "ops"),
        skip(Python(3, 13, free_threaded=True), "ops", Platform.LINUX_AARCH64),
    )
    assert plan_text(Plan((BUILD, alone), skips), explain=True).splitlines() == [
        "2 builds serve 3 cells; 3 cells are skipped.",
        "",
        "ops-1.0-abi3-torch2.11.0-cu130-py3       archs 8.0 9.0+PTX",
        "  serves  torch2.11.0-cu130-cp311, cp312",
        "one-1.0-cpython-torch2.11.0-cu130-cp311  archs 8.0 9.0+PTX",  # the name has the cell
        "",
        "skipped:",
        "     3  ops: there is no such wheel",
        "        torch2.2.2-cu121-cp312, cp314",
        "        torch2.2.2-cu121-cp313t-linux_aarch64",
        "  (number of cells and reason; `--json` lists each cell)",
    ]
    short = plan_text(Plan((OTHER,), skips[:1]), explain=False).splitlines()
    assert (short[0], short[-2]) == (
        "1 build serves 1 cell; 1 cell is skipped.",
        "     1  ops: there is no such wheel",
    )
    assert "--explain" in short[-1]


def test_the_explained_plan_of_a_large_matrix_can_be_read() -> None:
    _, _, plan = read_plan(ROOT / "matrix.yaml", Selection())
    assert len(plan.skips) > 700
    lines = plan_text(plan, explain=True).splitlines()
    assert len(lines) < 700
    reasons = [line for line in lines if re.match(r" +\d+  ", line)]
    assert len(reasons) == len(set(reasons)) == len(summarise_skips(plan)), "each reason once"


def test_the_hint_names_the_number_of_architectures_and_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCH_CUDA_ARCH_LIST", raising=False)
    assert architectures_hint([]) == architectures_hint([OTHER]) == ""
    hint = architectures_hint([BUILD])
    assert hint.startswith("Each wheel is compiled for 2 GPU architectures. ")
    assert "`--arch 9.0`" in hint
    assert "`--arch native`" in hint
    assert "for up to 2 GPU architectures" in architectures_hint([OTHER, BUILD])
    assert f"\n\n{hint}\n\nskipped:\n" in plan_text(Plan((BUILD,), (skip(Python(3, 12)),)), explain=False, hint=hint)
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "9.0")
    assert architectures_hint([BUILD]) == f"{hint} TORCH_CUDA_ARCH_LIST is not read."


def test_the_dry_run_names_the_architectures_of_each_compile() -> None:
    assert dry_run_text({BUILD: False, OTHER: True}, "a hint") == (
        "1 to compile, 1 already built\n"
        "  compile        ops-1.0-abi3-torch2.11.0-cu130-py3   archs 8.0 9.0+PTX\n"
        "  already built  more-2.0-abi3-torch2.11.0-cu130-py3\n"
        "a hint\n"
    )
    assert json.loads(dry_run_json({BUILD: False}))["builds"] == [
        {"build": str(BUILD), "status": "compile", "archs": ["8.0", "9.0+PTX"]}
    ]
