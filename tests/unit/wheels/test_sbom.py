"""The SBOM: valid CycloneDX, the same bytes each time, and each part of the wheel under its true name."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from builder.matrix.config import GitSource, SdistSource
from builder.records import Part, Record
from builder.wheelfile.elf import Elf
from builder.wheels.repair.sbom import Library, make_sbom
from tests.unit.wheels import make_record

NAME = "ops-1.0+cu130.torch2.11-cp312-cp312-manylinux_2_28_x86_64.whl"
PROVIDED = frozenset({"libtorch_cpu.so", "libcudart.so.13", "libnccl.so.2"})


def elf(*, undefined: tuple[str, ...] = (), fatbin: bool = False) -> Elf:
    needed = ("libtorch_cpu.so", "libother-1234.so.2", "libc.so.6")
    return Elf(needed=needed, undefined=undefined, defined=(), versions={}, fatbin=fatbin)


LIBRARIES = (("ops/_C.so", b"one", elf()), ("ops.libs/libother-1234.so.2", b"two", elf()))


def fault_of(text: str) -> object:
    """What the schema of CycloneDX 1.6 finds; None if it is kept."""
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator  # takes seconds to import

    return JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)


def sbom(record: Record, libraries: tuple[Library, ...] = LIBRARIES) -> dict[str, Any]:
    text = make_sbom("ops", "1.0+cu130.torch2.11", NAME, record, libraries, PROVIDED)
    fault = fault_of(text.decode())
    assert fault is None, fault
    data: dict[str, Any] = json.loads(text)
    return data


def said(data: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [component for component in data["components"] if component["name"] == name]
    return {**found, **{each["name"].removeprefix("buildfarm:"): each["value"] for each in found["properties"]}}


def test_it_names_the_wheel_and_what_made_it() -> None:
    data = sbom(make_record.record(make_record.TOOLCHAIN.having({Part.UV: "0.13.9"})))
    wrong = [{**data["components"][0], "scope": "somewhat"}]
    assert fault_of(json.dumps({**data, "components": wrong})) is not None, "the validator sees a fault"
    wheel = data["metadata"]["component"]
    assert (wheel["name"], wheel["version"]) == ("ops", "1.0+cu130.torch2.11")
    assert wheel["purl"].startswith("pkg:pypi/ops@1.0%2Bcu130.torch2.11?file_name=ops-1.0")
    for name, version in (("g++", "12.2.0"), ("nvcc", "13.0.88"), ("python", "3.12.1"), ("uv", "0.13.9")):
        tool = said(data, name)
        assert (tool["version"], tool["scope"], tool["role"]) == (version, "excluded", "toolchain")
    assert said(data, "torch")["scope"] == "required"
    assert said(data, "nvidia-cuda-nvcc")["purl"] == "pkg:pypi/nvidia-cuda-nvcc@13.0.88"


def test_what_is_linked_is_built_grafted_excluded_or_the_systems() -> None:
    data = sbom(make_record.record())
    assert said(data, "ops/_C.so")["link"] == "built"
    assert said(data, "ops/_C.so")["hashes"][0]["content"] == hashlib.sha256(b"one").hexdigest()
    assert said(data, "ops.libs/libother-1234.so.2")["link"] == "grafted"
    assert "excluded" in said(data, "libtorch_cpu.so")["link"]
    assert said(data, "libc.so.6")["link"] == "dynamic, of the system"
    names = [component["name"] for component in data["components"]]
    assert "libnccl.so.2" not in names  # left out, but nothing asks for it
    assert "libother-1234.so.2" not in names  # it is in the wheel


@pytest.mark.parametrize(
    ("fatbin", "undefined", "static"),
    [
        pytest.param(True, (), True, id="GPU code and a runtime inside"),
        pytest.param(True, ("__cudaRegisterFatBinary",), False, id="GPU code and a runtime outside"),
        pytest.param(False, (), False, id="no GPU code"),
    ],
)
def test_a_static_cuda_runtime_is_listed(fatbin: bool, undefined: tuple[str, ...], static: bool) -> None:
    library = ("ops/_C.so", b"one", elf(undefined=undefined, fatbin=fatbin))
    names = [component["name"] for component in sbom(make_record.record(), (library,))["components"]]
    assert ("libcudart_static.a" in names) is static


def test_source_and_patches_are_the_wheels_pedigree(tmp_path: Path) -> None:
    patch = tmp_path / "a fix.patch"
    patch.write_text("--- a\n")
    record = make_record.record(source=SdistSource("ops-cuda", "1.0", "ab" * 32), patches=(patch,))
    data = sbom(record)
    pedigree = data["metadata"]["component"]["pedigree"]
    (ancestor,) = pedigree["ancestors"]
    assert ancestor["purl"] == "pkg:pypi/ops-cuda@1.0"
    assert ancestor["hashes"] == [{"alg": "SHA-256", "content": "ab" * 32}]
    assert len(pedigree["patches"]) == 1
    assert said(data, "a fix.patch")["hashes"][0]["content"] == hashlib.sha256(b"--- a\n").hexdigest()
    git = sbom(make_record.record(source=GitSource("https://example.org/ops.git", "c" * 40)))
    (ancestor,) = git["metadata"]["component"]["pedigree"]["ancestors"]
    assert ancestor["version"] == "c" * 40
    assert ancestor["externalReferences"] == [{"type": "vcs", "url": "https://example.org/ops.git"}]


def test_the_base_image_is_named_by_digest_and_another_minor_version_is_said() -> None:
    toolchain = make_record.TOOLCHAIN.having(
        {
            Part.BASE: "nvidia/cuda:13.0.2-devel-rockylinux8",
            Part.BASE_DIGEST: "sha256:" + "e" * 64,
            Part.IMAGE: "buildfarm/x:1",
            Part.REQUESTED_CUDA: "CUDA 12.1",
        }
    )
    data = sbom(make_record.record(toolchain))
    stands_in = {"name": "buildfarm:stands-in-for", "value": "CUDA 12.1"}
    assert stands_in in data["metadata"]["component"]["properties"]
    base = said(data, "nvidia/cuda:13.0.2-devel-rockylinux8")
    assert (base["type"], base["hashes"]) == ("container", [{"alg": "SHA-256", "content": "e" * 64}])
    assert said(data, "buildfarm/x:1")["role"] == "rendered image"


def test_the_same_facts_give_the_same_bytes_and_others_another_number() -> None:
    one, two = sbom(make_record.record()), sbom(make_record.record())
    assert one == two
    other = sbom(make_record.record(make_record.TOOLCHAIN.having({Part.UV: "0.13.10"})))
    assert one["serialNumber"] != other["serialNumber"]
    assert one["metadata"]["timestamp"] == "1980-01-01T00:00:00+00:00"
