"""The statement beside a wheel: in the shape of in-toto and SLSA, about that wheel, and called unsigned."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from builder.matrix.config import GitSource, SdistSource
from builder.publish.statement import farm_code, make_statement, put_statement, statement_path
from builder.store import Stored
from builder.wheels.record import Record
from tests.unit.wheels import make_record

KEPT = {
    "provided": ["libtorch.so"],
    "jobs": 2,
    "farm": "f" * 64,
    "started": "2026-01-02T03:04:05+00:00",
    "seconds": 60.4,
}


def stored(folder: Path, record: Record | None = None, **kept: Any) -> Stored:
    folder.mkdir(exist_ok=True)
    wheel = folder / "ops-1.0+cu130.torch211-cp312-cp312-manylinux_2_28_x86_64.whl"
    wheel.write_bytes(b"wheel")
    return Stored("d" * 64, wheel, {**(record or make_record.record()).to_json(), **KEPT, **kept})


def statement(wheel: Stored) -> dict[str, Any]:
    text = make_statement(wheel)
    assert text is not None
    data: dict[str, Any] = json.loads(text)
    return data


def test_the_shape_and_the_subject(tmp_path: Path) -> None:
    wheel = stored(tmp_path)
    data = statement(wheel)
    assert data["_type"] == "https://in-toto.io/Statement/v1"
    assert data["predicateType"] == "https://slsa.dev/provenance/v1"
    sha256 = hashlib.sha256(b"wheel").hexdigest()
    assert data["subject"] == [{"name": wheel.wheel.name, "digest": {"sha256": sha256}}]
    definition, details = data["predicate"]["buildDefinition"], data["predicate"]["runDetails"]
    assert set(definition) == {"buildType", "externalParameters", "internalParameters", "resolvedDependencies"}
    assert definition["externalParameters"]["archs"] == ["8.0", "9.0+PTX"]
    assert definition["internalParameters"]["toolchain"]["nvcc"] == "13.0.88"
    assert details["builder"]["id"] == "urn:buildfarm:executor:local"
    assert details["metadata"]["startedOn"] == "2026-01-02T03:04:05Z"
    assert details["metadata"]["finishedOn"] == "2026-01-02T03:05:05Z"
    assert "unsigned" in details["buildfarm_signature"]


def dependencies(wheel: Stored) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = statement(wheel)["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert all({"uri", "digest", "content"} & set(each) for each in found)  # in-toto's ResourceDescriptor asks for one
    return found


def test_everything_that_went_in_is_named(tmp_path: Path) -> None:
    patch = tmp_path / "a.patch"
    patch.write_text("--- a\n")
    record = make_record.record(
        {"base": "debian:13", "base digest": "sha256:" + "e" * 64},
        source=SdistSource("ops-cuda", "1.0", "ab" * 32),
        patches=(patch,),
    )
    source, changed, base, *packages = dependencies(stored(tmp_path / "store", record))
    assert source == {"name": "source", "uri": "pkg:pypi/ops-cuda@1.0", "digest": {"sha256": "ab" * 32}}
    assert changed["digest"] == {"sha256": hashlib.sha256(b"--- a\n").hexdigest()}
    assert base == {"name": "base image", "uri": "docker://debian:13", "digest": {"sha256": "e" * 64}}
    assert {"uri": "pkg:pypi/torch@2.11.0"} in packages


def test_sources_of_other_kinds(tmp_path: Path) -> None:
    git = make_record.record(source=GitSource("https://example.org/ops.git", "c" * 40))
    assert dependencies(stored(tmp_path, git))[0]["digest"] == {"gitCommit": "c" * 40}
    assert dependencies(stored(tmp_path))[0]["digest"] == {"buildfarm_source_1": "5" * 64}


def test_it_lies_beside_both_and_is_written_once(tmp_path: Path) -> None:
    wheel, dist = stored(tmp_path / "store"), tmp_path / "dist"
    target = put_statement(wheel, dist)
    assert target == dist / f"{wheel.wheel.name}.intoto.json"
    assert target.read_bytes() == statement_path(wheel.wheel).read_bytes()
    before = target.stat().st_mtime_ns, target.stat().st_ino
    assert put_statement(wheel, dist) == target
    assert (target.stat().st_mtime_ns, target.stat().st_ino) == before
    assert farm_code(dist / wheel.wheel.name) == "f" * 64


@pytest.mark.parametrize("kept", [{"started": None}, {"schema": 1}, {"seconds": "long"}, {"toolchain": None}])
def test_a_record_that_cannot_tell_gives_none_and_takes_the_old_one_away(tmp_path: Path, kept: dict[str, Any]) -> None:
    wheel, dist = stored(tmp_path / "store", **kept), tmp_path / "dist"
    dist.mkdir()
    statement_path(dist / wheel.wheel.name).write_text("of an earlier wheel")
    assert put_statement(wheel, dist) is None
    assert list(dist.iterdir()) == []
    assert farm_code(dist / wheel.wheel.name) == ""
