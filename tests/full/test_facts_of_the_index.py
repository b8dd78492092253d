"""Each torch and each toolkit that the table of facts has, read again from the package index: equal, or explained."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builder.matrix import compat
from builder.matrix.axes import Cuda, Torch
from builder.matrix.compat import Compat
from builder.matrix.compat_table import facts_text, read_text_yaml, with_facts
from builder.wheels.upstream import toolkit_facts, torch_facts

pytestmark = pytest.mark.network

LISTED = Compat.load()
#: The newest release of each series from 2.0 on, and the toolkits with an nvcc on the package index.
TORCHES = list({torch.series: torch for torch in LISTED.torches if torch.major > 1}.values())
TOOLKITS = [one.cuda for one in LISTED.toolkits if one.cuda >= LISTED.first_packaged_toolkit]
ARCHS = sorted({replace(arch, ptx=False) for one in LISTED.toolkits for arch in one.archs})
#: (torch, fact): why the table differs from the index.
EXPLAINED = {
    ("2.0.1", "gcc_min"): "its build tools pass C++17, and its headers accept C++14",
    ("2.0.1", "companions"): "torchaudio 2.0.1 belongs to torch 2.0.0",
    ("2.5.1", "variants"): "the wheel with CUDA for aarch64 is on PyTorch's own index",
    ("2.12.1", "companions"): "METADATA of torchaudio 2.11.1 admits torch 2.12, and its import fails there",
    ("2.14.1", "companions"): "torchvision 0.29.2, which came out with torch 2.15, admits torch 2.14 too",
}


def table() -> dict[str, Any]:
    raw: dict[str, Any] = read_text_yaml(compat._FILE)
    return raw


def without(torch: Torch) -> dict[str, Any]:
    """The table without a series."""
    raw = table()
    del raw["torch"][torch.series]
    for row in raw["torch_gcc_checks"]["rows"]:
        row["torch"] = [series for series in row["torch"] if series != torch.series]
    for key in ("since", "until"):
        raw["torch_arch_list"][key].pop(torch.series, None)
    for rows in raw["companions"]["rows"].values():
        rows.pop(str(torch), None)
    return raw


def facts_of(table: Compat, torch: Torch) -> dict[str, object]:
    facts = table.torch(torch)
    return {
        "pythons": facts.pythons[torch],
        "default": facts.default,
        "variants": facts.variants[facts.default],
        "gcc_min": facts.gcc_min,
        "gcc_max": {one.cuda: table._gcc_checks.get((torch.series, one.cuda)) for one in table.toolkits},
        "companions": {name: rows.get(torch) for name, rows in table.companions.items()},
        "arch_list": [arch for arch in ARCHS if table.why_not_listed(torch, arch) is None],
    }


@pytest.mark.parametrize("torch", TORCHES, ids=str)
def test_a_torch_is_as_in_the_table(torch: Torch, tmp_path: Path) -> None:
    file = tmp_path / "facts.yaml"
    file.write_text(facts_text({"torch": {str(torch): torch_facts(str(torch))[1].to_row()}, "toolkits": {}}))
    listed, read = facts_of(LISTED, torch), facts_of(with_facts(without(torch), file, Compat), torch)
    differing = [fact for fact in listed if listed[fact] != read[fact] and (str(torch), fact) not in EXPLAINED]
    assert {fact: (listed[fact], read[fact]) for fact in differing} == {}


@pytest.mark.parametrize("cuda", TOOLKITS, ids=str)
def test_a_toolkit_is_as_in_the_table(cuda: Cuda, tmp_path: Path) -> None:
    file, raw = tmp_path / "facts.yaml", table()
    file.write_text(facts_text({"torch": {}, "toolkits": {str(cuda): toolkit_facts(cuda).to_row()}}))
    del raw["toolkits"][str(cuda)]
    listed, read = LISTED.toolkit(cuda), with_facts(raw, file, Compat).toolkit(cuda)
    assert read == replace(listed, systems=read.systems, driver=read.driver), "no package states these two"
