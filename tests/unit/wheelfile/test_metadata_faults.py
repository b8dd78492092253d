"""METADATA that twine refuses is named, and no other."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from twine.exceptions import InvalidDistribution
from twine.package import PackageFile

from builder.proofs.static.metadata import check_metadata
from builder.wheelfile.facts import metadata_faults, read_facts
from tests.unit.proofs.make import claim


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
