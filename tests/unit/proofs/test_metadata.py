from __future__ import annotations

import re
from typing import Any

import pytest

from builder.matrix.axes import Cell
from builder.proofs.metadata import check_metadata
from tests.unit.proofs.make import claim, gpu_library, library, wheel_facts

ABI3 = "cp310-abi3-manylinux_2_28_x86_64"


@pytest.mark.parametrize(
    ("facts", "said", "fault"),
    [
        pytest.param({}, {}, "", id="all as claimed"),
        pytest.param({"version": "1.0"}, {}, r"\+cu130\.torch211 is missing", id="no local version"),
        pytest.param({"version": "1.0+cu13"}, {}, "is missing", id="another build's local version"),
        pytest.param({"version": "1.0"}, {"local": ""}, "", id="no local version claimed"),
        pytest.param(
            {"filename": "ops-1.1-cp312-cp312-linux_x86_64.whl"},
            {},
            "file name says version 1.1",
            id="version",
        ),
        pytest.param({"name": "Others"}, {}, "named for ops, METADATA says Others", id="name"),
        pytest.param({"requires_dist": ()}, {}, "does not require torch>=2.11,<2.12", id="torch not required"),
        pytest.param(
            {"requires_dist": ("torch; extra == 'all'",)}, {}, "does not require", id="torch only as an extra"
        ),
        pytest.param({"requires_dist": ("torch",)}, {}, r"admits torch 1\.0\.0, .* and \d+ more", id="any torch"),
        pytest.param({"requires_dist": ("torch>=2.11",)}, {}, r"admits torch 2\.12\.0", id="wider above"),
        pytest.param({"requires_dist": ("torch>=2.10,<2.12",)}, {}, r"admits torch 2\.10\.0", id="wider below"),
        pytest.param({"requires_dist": ("torch==2.11.*",)}, {}, "", id="the same said otherwise"),
        pytest.param({"requires_dist": ("torch==2.11.0+cu130",)}, {}, "", id="pinned to the cell's own torch"),
        pytest.param({"requires_dist": ("torch==2.11.1",)}, {}, "shuts out the claimed torch2.11.0", id="too narrow"),
        pytest.param({"requires_dist": ("torch>=2.11", "torch<2.12")}, {}, "", id="in two lines"),
        pytest.param({"requires_dist": ("torch>=2.11,<2.12", "???")}, {}, r"'\?\?\?' cannot be read", id="nonsense"),
        pytest.param(
            {},
            {"requires": ("torch>=2.11,<2.12", "numpy>=2")},
            "does not require numpy>=2",
            id="other requirement",
        ),
        pytest.param(
            {"requires_dist": ("torch==2.11.0", "NumPy>=1")},
            {"requires": ("numpy>=2",)},
            "where numpy>=2 is claimed",
            id="looser",
        ),
        pytest.param(
            {"requires_dist": ("torch==2.11.0", "NumPy<3,>=2")}, {"requires": ("numpy>=2",)}, "", id="tighter"
        ),
        pytest.param(
            {"requires_dist": ()},
            {"requires": ()},
            "link torch, but METADATA does not",
            id="unclaimed, but linked",
        ),
        pytest.param({"requires_python": "<3.12"}, {}, "shuts out the claimed Python 3.12", id="Python"),
        pytest.param({"requires_python": ""}, {}, "", id="no Requires-Python"),
        pytest.param({"requires_python": "3.10 up"}, {}, "cannot be read", id="Requires-Python is nonsense"),
        pytest.param({"tag": ABI3, "requires_python": ">=3.8"}, {}, "", id="abi3, wider than the tag"),
        pytest.param(
            {"tag": ABI3, "requires_python": "<3.10"},
            {"cells": ()},
            "cp310-abi3 have no Python",
            id="abi3, none",
        ),
    ],
)
def test_metadata(facts: dict[str, Any], said: dict[str, Any], fault: str) -> None:
    proof = check_metadata(wheel_facts(gpu_library("sm_90"), **facts), claim(**said))
    assert proof.verdict == ("failed" if fault else "passed"), proof.reason
    assert re.search(fault, proof.reason)


def test_a_stable_wheel_takes_every_torch_from_its_floor() -> None:
    cells = tuple(map(Cell.parse, ("torch2.10.0-cu130-cp310", "torch2.15.0-cu132-cp314")))
    wheel = wheel_facts(library(), tag=ABI3, version="1.0+cu13", requires_dist=("torch>=2.10",))
    said = claim(cells=cells, local="cu13", requires=("torch>=2.10",))
    assert check_metadata(wheel, said).verdict == "passed"
