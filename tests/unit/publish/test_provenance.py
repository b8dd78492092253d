"""The statement next to a wheel: follows in-toto and SLSA, names the wheel, and is marked as unsigned."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from builder.matrix.config import GitSource, SdistSource
from builder.publish.provenance import make_statement, statement_path, write_statement
from builder.records import Part, Record
from builder.store import StoredBuild
from tests.unit.wheels import make_record


def stored(folder: Path, record: Record | None = None) -> StoredBuild:
    folder.mkdir(exist_ok=True)
    wheel = folder / "ops-1.0+cu130.torch2.11-cp312-cp312-manylinux_2_28_x86_64.whl"
    wheel.write_bytes(b"wheel")
    return StoredBuild("d" * 64, wheel, make_record.build_record(record, provided=frozenset({"libtorch.so"})))


def statement(wheel: StoredBuild) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(make_statement(wheel))
    return data


def test_the_fields_and_the_subject(tmp_path: Path) -> None:
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


def dependencies(wheel: StoredBuild) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = statement(wheel)["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert all({"uri", "digest", "content"} & set(each) for each in found)  # in-toto's ResourceDescriptor requires one
    return found


def test_every_input_is_listed(tmp_path: Path) -> None:
    patch = tmp_path / "a.patch"
    patch.write_text("--- a\n")
    record = make_record.record(
        make_record.TOOLCHAIN.having({Part.BASE: "debian:13", Part.BASE_DIGEST: "sha256:" + "e" * 64}),
        source=SdistSource("ops-cuda", "1.0", "ab" * 32),
        patches=(patch,),
    )
    source, changed, base, *packages = dependencies(stored(tmp_path / "store", record))
    assert source == {"name": "source", "uri": "pkg:pypi/ops-cuda@1.0", "digest": {"sha256": "ab" * 32}}
    assert changed["digest"] == {"sha256": hashlib.sha256(b"--- a\n").hexdigest()}
    assert base == {"name": "base image", "uri": "docker://debian:13", "digest": {"sha256": "e" * 64}}
    assert {"uri": "pkg:pypi/torch@2.11.0"} in packages


def test_git_sources_and_local_sources(tmp_path: Path) -> None:
    git = make_record.record(source=GitSource("https://example.org/ops.git", "c" * 40))
    assert dependencies(stored(tmp_path, git))[0]["digest"] == {"gitCommit": "c" * 40}
    assert dependencies(stored(tmp_path))[0]["digest"] == {"buildfarm_source_1": "5" * 64}


def test_it_is_written_next_to_both_copies_and_only_once(tmp_path: Path) -> None:
    wheel, dist = stored(tmp_path / "store"), tmp_path / "dist"
    target = write_statement(wheel, dist)
    assert target == dist / f"{wheel.wheel.name}.intoto.json"
    assert target.read_bytes() == statement_path(wheel.wheel).read_bytes()
    before = target.stat().st_mtime_ns, target.stat().st_ino
    assert write_statement(wheel, dist) == target
    assert (target.stat().st_mtime_ns, target.stat().st_ino) == before
    assert '"build_format": 7' in target.read_text()
