from __future__ import annotations

import re
from typing import Any

import pytest

from builder.matrix.axes import Cell
from builder.proofs.static.metadata import check_metadata
from tests.unit.proofs.make import claim, gpu_library, library, wheel_facts

URL = "https://download.example/whl/cu130/torch-2.11.0%2Bcu130-cp312-cp312-manylinux_2_28_x86_64.whl"
ABI3 = "cp310-abi3-manylinux_2_28_x86_64"


@pytest.mark.parametrize(
    ("facts", "claimed", "error"),
    [
        pytest.param({}, {}, "", id="all as claimed"),
        pytest.param(
            {"tags": ("py3-abi3-linux_x86_64", "cp3-abi3-any", f"cp3{'9' * 5000}-abi3-any")},
            {},
            "",
            id="tags that no Python has",
        ),
        pytest.param(
            {"tags": ("cp310-abi3t-linux_x86_64",), "requires_python": "<3.15,>=3.10"},
            {},
            "Requires-Python <3.15,>=3.10 and the tag cp310-abi3t have no Python in common",
            id="abi3t begins with 3.15",
        ),
        pytest.param({"version": "1.0"}, {}, r"lacks the local part \+cu130\.torch2\.11", id="no local version"),
        pytest.param({"version": "1.0+cu13"}, {}, "lacks the local part", id="local version of a different build"),
        pytest.param({"version": "1.0"}, {"local": ""}, "", id="no local version claimed"),
        pytest.param(
            {"filename": "ops-1.1-cp312-cp312-linux_x86_64.whl"}, {}, "version is 1.1 in the file name", id="version"
        ),
        pytest.param({"name": "Others"}, {}, "project is ops in the file name and Others in METADATA", id="name"),
        pytest.param(
            {"requires_dist": (f"torch @ {URL}",)},
            {"requires": ()},
            r"requires torch by a URL \(download.example\): uv and PyPI refuse .*such as torch==2\.11\.0\+cu130",
            id="torch by a URL",
        ),
        pytest.param(
            {"requires_dist": ("torch @ git+https://me:secret@git.example/pytorch@v2.11.0",)},
            {"requires": ()},
            r"requires torch by a URL \(git.example\): .* because the URL does not say it",
            id="torch by a URL without a version",
        ),
        pytest.param(
            {"requires_dist": (f"torch @ {URL.replace('2.11.0', '2.10.0')}",)},
            {"requires": ()},
            r"which excludes cells of this build",
            id="another torch by a URL",
        ),
        pytest.param({"requires_dist": ()}, {}, "does not require torch>=2.11,<2.12", id="torch not required"),
        pytest.param(
            {"requires_dist": ("torch; extra == 'all'",)}, {}, "does not require", id="torch only as an extra"
        ),
        pytest.param({"requires_dist": ("torch",)}, {}, r"allows torch 1\.0\.0, .* and \d+ more", id="any torch"),
        pytest.param({"requires_dist": ("torch>=2.11",)}, {}, r"allows torch 2\.12\.0", id="wider above"),
        pytest.param({"requires_dist": ("torch>=2.10,<2.12",)}, {}, r"allows torch 2\.10\.0", id="wider below"),
        pytest.param({"requires_dist": ("torch==2.11.*",)}, {}, "", id="same range, other spelling"),
        pytest.param({"requires_dist": ("torch==2.11.0+cu130",)}, {}, "", id="pinned to the cell's own torch"),
        pytest.param(
            {"requires_dist": ("torch==2.11.1",)}, {}, "excludes cells of this build: torch2.11.0", id="too narrow"
        ),
        pytest.param(
            {
                "requires_dist": (
                    "torch==2.11.*; python_version >= '3.12'",
                    "torch==2.10.*; python_version < '3.12'",
                    "torch==2.9.*; sys_platform == 'win32'",
                )
            },
            {"requires": ()},
            "",
            id="by Python and platform",
        ),
        pytest.param({"requires_dist": ("torch>=2.11", "torch<2.12")}, {}, "", id="in two lines"),
        pytest.param({"requires_dist": ("torch>=2.11,<2.12", "???")}, {}, r"'\?\?\?' is not a valid", id="nonsense"),
        pytest.param(
            {}, {"requires": ("torch>=2.11,<2.12", "numpy>=2")}, "does not require numpy>=2", id="other requirement"
        ),
        pytest.param(
            {"requires_dist": ("torch==2.11.0", "NumPy>=1")},
            {"requires": ("numpy>=2",)},
            "`requires` in extension.yaml has numpy>=2",
            id="looser",
        ),
        pytest.param(
            {"requires_dist": ("torch==2.11.0", "NumPy<3,>=2")}, {"requires": ("numpy>=2",)}, "", id="tighter"
        ),
        pytest.param(
            {"requires_dist": ()}, {"requires": ()}, "link torch, but METADATA does not", id="unclaimed, but linked"
        ),
        pytest.param(
            {"requires_python": "<3.12"}, {}, "excludes Python 3.12, which cells of this build have", id="Python"
        ),
        pytest.param({"requires_python": ""}, {}, "", id="no Requires-Python"),
        pytest.param({"requires_python": "3.10 up"}, {}, "not a valid version range", id="Requires-Python is nonsense"),
        pytest.param({"tag": ABI3, "requires_python": ">=3.8"}, {}, "", id="abi3, wider than the tag"),
        pytest.param(
            {"tag": ABI3, "requires_python": "<3.10"}, {"cells": ()}, "cp310-abi3 have no Python", id="abi3, none"
        ),
    ],
)
def test_metadata(facts: dict[str, Any], claimed: dict[str, Any], error: str) -> None:
    proof = check_metadata(wheel_facts(gpu_library("sm_90"), **facts), claim(**claimed))
    assert proof.verdict == ("failed" if error else "passed"), proof.reason
    assert re.search(error, proof.reason)


def test_stable_wheel_admits_every_torch_from_its_floor() -> None:
    cells = tuple(map(Cell.parse, ("torch2.10.0-cu130-cp310", "torch2.15.0-cu132-cp314")))
    wheel = wheel_facts(library(), tag=ABI3, version="1.0+cu13", requires_dist=("torch>=2.10",))
    stable = claim(cells=cells, local="cu13", requires=("torch>=2.10",))
    assert check_metadata(wheel, stable).verdict == "passed"


def test_a_version_that_cannot_be_read_for_certain_is_a_remark() -> None:
    facts = wheel_facts(version="1.0+torch211", requires_dist=("torch==2.11.*",))
    proof = check_metadata(facts, claim(local=""))
    assert proof.evidence["remarks"] == ["the version 1.0+torch211 names torch 2.1 or 2.11"]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("numpy @ https://download.example/numpy-2.0-py3-none-any.whl", "requires numpy by a URL (download.example)"),
        ("numpy @ git+ssh://git@git.example/numpy", "requires numpy by a URL (git.example)"),
        ("numpy @ file:///home/me/numpy.whl", "requires numpy by a URL (a file)"),
        (f"torch @ {URL} ; extra == 'cuda'", "requires torch by a URL (download.example)"),
        ("numpy>=2", ""),
    ],
)
def test_another_requirement_by_a_url_is_a_remark(line: str, says: str) -> None:
    facts = wheel_facts(library(), requires_dist=("torch>=2.11,<2.12", line))
    proof = check_metadata(facts, claim())
    assert proof.verdict == "passed"
    remarks = proof.evidence.get("remarks", [])
    assert len(remarks) == bool(says)
    assert says in " ".join(remarks)
