from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pytest
from twine.exceptions import InvalidDistribution
from twine.package import PackageFile

from builder.matrix.axes import Cell
from builder.proofs.static.metadata import check_metadata
from builder.wheelfile.facts import metadata_faults, read_facts
from tests.unit.proofs.make import claim, expect, gpu_library, library, wheel_facts

URL = "https://download.example/whl/cu130/torch-2.11.0%2Bcu130-cp312-cp312-manylinux_2_28_x86_64.whl"
ABI3 = "cp310-abi3-manylinux_2_28_x86_64"


NEVER = ("py3-abi3-linux_x86_64", "cp3-abi3-any", f"cp3{'9' * 5000}-abi3-any")  # tags that no Python has
BY_PYTHON = (
    "torch==2.11.*; python_version >= '3.12'",
    "torch==2.10.*; python_version < '3.12'",
    "torch==2.9.*; sys_platform == 'win32'",
)
NO_VERSION = "torch @ git+https://me:secret@git.example/pytorch@v2.11.0"
METADATA: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {}, ""),
    ({"tags": NEVER}, {}, ""),
    ({"tags": ("cp310-abi3t-linux_x86_64",), "requires_python": "<3.15,>=3.10"}, {}, "cp310-abi3t have no Python in"),
    ({"version": "1.0"}, {}, r"lacks the local part \+cu130\.torch2\.11"),
    ({"version": "1.0+cu13"}, {}, "lacks the local part"),
    ({"version": "1.0"}, {"local": ""}, ""),
    ({"filename": "ops-1.1-cp312-cp312-linux_x86_64.whl"}, {}, "version is 1.1 in the file name"),
    ({"name": "Others"}, {}, "project is ops in the file name and Others in METADATA"),
    (
        {"requires_dist": (NO_VERSION,)},
        {"requires": ()},
        r"torch by a URL \(git.example\): .* because the URL does not",
    ),
    (
        {"requires_dist": (f"torch @ {URL.replace('11.0', '10.0')}",)},
        {"requires": ()},
        "which excludes cells of this build",
    ),
    ({"requires_dist": ()}, {}, "does not require torch>=2.11,<2.12"),
    ({"requires_dist": ("torch; extra == 'all'",)}, {}, "does not require"),
    ({"requires_dist": ("torch",)}, {}, r"allows torch 1\.0\.0, .* and \d+ more"),
    ({"requires_dist": ("torch>=2.11",)}, {}, r"allows torch 2\.12\.0"),
    ({"requires_dist": ("torch>=2.10,<2.12",)}, {}, r"allows torch 2\.10\.0"),
    ({"requires_dist": ("torch==2.11.*",)}, {}, ""),
    ({"requires_dist": ("torch==2.11.0+cu130",)}, {}, ""),  # the cell's own torch
    ({"requires_dist": ("torch==2.11.1",)}, {}, "excludes cells of this build: torch2.11.0"),
    ({"requires_dist": BY_PYTHON}, {"requires": ()}, ""),
    ({"requires_dist": ("torch>=2.11", "torch<2.12")}, {}, ""),
    ({"requires_dist": ("torch>=2.11,<2.12", "???")}, {}, r"'\?\?\?' is not a valid"),
    ({}, {"requires": ("torch>=2.11,<2.12", "numpy>=2")}, "does not require numpy>=2"),
    ({"requires_dist": ("torch==2.11.0", "NumPy>=1")}, {"requires": ("numpy>=2",)}, "in extension.yaml has numpy>=2"),
    ({"requires_dist": ("torch==2.11.0", "NumPy<3,>=2")}, {"requires": ("numpy>=2",)}, ""),
    ({"requires_python": "<3.12"}, {}, "excludes Python 3.12, which cells of this build have"),
    ({"requires_python": ""}, {}, ""),
    ({"requires_python": "3.10 up"}, {}, "not a valid version range"),
    ({"tag": ABI3, "requires_python": ">=3.8"}, {}, ""),  # wider than the tag
    ({"tag": ABI3, "requires_python": "<3.10"}, {"cells": ()}, "cp310-abi3 have no Python"),
]


@pytest.mark.parametrize(("facts", "claimed", "error"), METADATA)
def test_metadata(facts: dict[str, Any], claimed: dict[str, Any], error: str) -> None:
    expect(check_metadata(wheel_facts(gpu_library("sm_90"), **facts), claim(**claimed)), error)


def test_stable_wheel_admits_every_torch_from_its_floor() -> None:
    cells = tuple(map(Cell.parse, ("torch2.10.0-cu130-cp310", "torch2.15.0-cu132-cp314")))
    wheel = wheel_facts(library(), tag=ABI3, version="1.0+cu13", requires_dist=("torch>=2.10",))
    stable = claim(cells=cells, local="cu13", requires=("torch>=2.10",))
    expect(check_metadata(wheel, stable))


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
    proof = expect(check_metadata(facts, claim()), remark=says)
    assert len(proof.evidence.get("remarks", [])) == bool(says)


def wheel(folder: Path, metadata_version: str, lines: str) -> Path:
    path = folder / "ops-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        text = f"Metadata-Version: {metadata_version}\nName: ops\nVersion: 1.0\nRequires-Dist: torch==2.11.*\n{lines}\n"
        archive.writestr("ops-1.0.dist-info/METADATA", f"{text}\nName: not a header\n")
        archive.writestr("ops-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("ops-1.0.dist-info/RECORD", "")
    return path


@pytest.mark.parametrize(
    ("version", "lines", "says"),
    [
        ("2.4", "Import-Name: x", "import-name introduced in metadata version 2.5, not 2.4"),
        ("2.3", "License-Expression: MIT", "license-expression introduced in metadata version 2.4, not 2.3"),
        ("2.2", "Dynamic: Name", "'name' is not allowed as a dynamic field"),
        ("2.1", "Description-Content-Type: text/x", "not 'text/x'"),
        ("2.7", "", "'2.7' is not a valid metadata version"),
        ("3.0", "", "'3.0' is not a valid metadata version"),
        ("2.1", "Owner: me", "owner is unknown"),
        ("2.1", "License-File: LICENSE", ""),
        ("2.3", "License-File: LICENSE", ""),
        ("2.5", "Import-Name: x\nImport-Namespace: y", ""),
        ("2.6", "Dynamic: Summary\nSummary: x", ""),
        ("2.4", "License-Expression: MIT OR Apache-2.0\nLicense-File: LICENSE", ""),
    ],
)
def test_what_twine_refuses_is_a_remark(tmp_path: Path, version: str, lines: str, says: str) -> None:
    path = wheel(tmp_path, version, lines)
    proof = check_metadata(read_facts(path), claim(cells=(), local="", requires=()))
    assert proof.verdict == "passed", proof.reason
    remarks = " ".join(proof.evidence.get("remarks", ()))
    assert says in remarks
    assert bool(remarks) == bool(says)
    if says:
        with pytest.raises(InvalidDistribution):
            PackageFile.from_filename(str(path), None)
    else:
        PackageFile.from_filename(str(path), None)


@pytest.mark.parametrize(
    "line",
    [
        "License-Expression: " + "(" * 10_000,
        "Name: " + "a" * 10**6,
        "Version: " + "9" * 6000,
        "Requires-Dist: ???",
        "\xff",
    ],
)
def test_hostile_metadata_raises_nothing(line: str) -> None:
    faults = metadata_faults(f"Metadata-Version: 2.4\nName: ops\nVersion: 1.0\n{line}\n".encode("latin-1"))
    assert all(len(fault) < 1000 for fault in faults)
