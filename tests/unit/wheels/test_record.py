"""What a wheel says of how it was made: its record, its SBOM, and the digest of its inputs."""

import hashlib
import json
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builder.errors import UsageError
from builder.matrix.axes import AbiClass, Arch, Cell, Cuda, Python, Torch
from builder.matrix.config import AbiRule, GitSource, Recipe, SdistSource
from builder.matrix.plan import Build
from builder.records import BuildRecord, CacheStatistics, Part, Record, Toolchain, read_record, recorded_settings
from builder.wheelfile.elf import Elf
from builder.wheels import job as digests
from builder.wheels.job import build_digest, required_torch, torch_floor
from builder.wheels.repair.sbom import Library, make_sbom
from tests.unit.matrix import make
from tests.unit.wheels import make_record

INSIDE = "ops-1.0.dist-info/buildfarm.json"


def wheel_with(folder: Path, text: str | None) -> Path:
    wheel = folder / "ops-1.0-cp312-cp312-linux_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("ops/__init__.py", "")
        if text is not None:
            archive.writestr(INSIDE, text)
    return wheel


def test_a_record_is_read_back_as_it_was(tmp_path: Path) -> None:
    record = make_record.record(minor_mismatch=True)
    assert (record.build, record.settings["env"]) == (make_record.BUILD, {"WITH_X": "1"})
    settings = {**record.settings, "config_settings": {"--global-option": ["--cuda_ext", "--blas=x"]}}
    named = replace(record, settings=settings, build=replace(record.build, project="ops_cu130"))
    for one in (record, named):
        assert read_record(wheel_with(tmp_path, json.dumps(one.to_json()))) == one
    assert named.build.wheel_name == "ops_cu130"


def test_the_source_is_named_without_a_place_or_a_password(tmp_path: Path) -> None:
    patch = tmp_path / "01-fix.patch"
    patch.write_text("--- a\n")
    git = GitSource("https://user:secret@example.org/ops.git", "c" * 40, "python")
    source = make_record.record(source=git, patches=(patch,)).source.to_json()
    assert source == {
        "kind": "git",
        "url": "https://***@example.org/ops.git",
        "revision": "c" * 40,
        "subdirectory": "python",
        "digest": "5" * 64,
        "patches": [{"name": "01-fix.patch", "sha256": hashlib.sha256(b"--- a\n").hexdigest()}],
    }
    sdist = make_record.record(source=SdistSource("ops", "1.0", "AB" * 32)).source
    assert (sdist.kind, sdist.origin) == ("sdist", SdistSource("ops", "1.0", "ab" * 32))
    assert "/farm" not in json.dumps(make_record.record().to_json())


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(None, id="none"),
        pytest.param("{", id="no JSON"),
        pytest.param('{"schema": 1, "build": "ops"}', id="another schema"),
        pytest.param('{"schema": 2}', id="half"),
        pytest.param(json.dumps(make_record.record().to_json() | {"torch": "newest"}), id="no release"),
    ],
)
def test_a_wheel_that_does_not_say_is_refused(tmp_path: Path, text: str | None) -> None:
    sentence = "the wheel has no buildfarm.json that" if text else "buildfarm did not build this wheel"
    with pytest.raises(UsageError, match=sentence):
        read_record(wheel_with(tmp_path, text))


def test_every_setting_of_the_digest_is_in_the_record() -> None:
    """What changes a build's digest must be known to make it again."""
    always = {"env", "assume_cuda", "build_requires", "requires"}
    assert set(recorded_settings(make.recipe())) == always
    changes: dict[str, Any] = {
        "override_architectures": True,
        "requires_torch": "source",
        "cuda": "optional",
        "wheel_exclude": ("tests/*",),
    }
    for key, value in changes.items():
        settings = recorded_settings(replace(make.recipe(), **{key: value}))
        assert set(settings) == {*always, key}, "in the record only where it is used"
        record = replace(make_record.record(), settings=settings)
        assert Record.from_json(json.loads(json.dumps(record.to_json()))) == record
    unreadable: tuple[dict[str, Any], ...] = ({"env": {}}, {**settings, "assume_cuda": "yes"})
    for broken in unreadable:
        with pytest.raises((KeyError, ValueError)):
            Record.from_json(record.to_json() | {"recipe": broken})


def test_every_part_of_a_toolchain_has_its_key_and_an_absent_part_has_none() -> None:
    """The keys are inside wheels: a changed one would make every rebuilt wheel differ."""
    values = {
        Part.AUDITWHEEL: "6.8", Part.BASE: "b", Part.BASE_DIGEST: "d", Part.BASE_ID: "i", Part.CXX: "g++ 12.2.0",
        Part.CC: "gcc", Part.CIBUILDWHEEL: "4", Part.CYCLONEDX: "11", Part.IMAGE: "t", Part.NVCC: "",
        Part.PATCHELF: "0.17", Part.PYTHON_VERSION: "3.12.1", Part.SCCACHE: None,
        Part.REQUESTED_CUDA: "CUDA 12.1", Part.UV: "0.13", Part.ZLIB: "1.3",
    }  # fmt: skip
    packages = ("ninja==1.12", "torch==2.11.0")
    toolchain = Toolchain(executor="docker", python=Python(3, 12), packages=packages, others=values)
    parts = {
        "auditwheel": "6.8", "base": "b", "base digest": "d", "base id": "i", "c++": "g++ 12.2.0", "cc": "gcc",
        "cibuildwheel": "4", "cyclonedx-python-lib": "11", "image": "t", "nvcc": "",
        "packages": "ninja==1.12 torch==2.11.0", "patchelf": "0.17", "python": "3.12.1",
        "stands in for": "CUDA 12.1", "uv": "0.13", "zlib": "1.3",
    }  # fmt: skip
    record = make_record.record(toolchain)
    assert json.dumps(record.to_json()["toolchain"]) == json.dumps(parts)
    assert Record.from_json(record.to_json()).toolchain.parts() == toolchain.parts()
    bare = Toolchain(executor="local", python=Python(3, 12))
    assert make_record.record(bare).to_json()["toolchain"] == {"packages": ""}
    assert Record.from_json(make_record.record(bare).to_json()).toolchain == bare


def test_what_the_store_keeps_is_read_back_as_it_was() -> None:
    objects = CacheStatistics(reused=3, compiled=1, not_cached={"-save-temps": 1})
    for kept in (make_record.build_record(), make_record.build_record(objects=objects, provided=frozenset({"a.so"}))):
        assert BuildRecord.from_json(json.loads(json.dumps(kept.to_json()))) == kept


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


def test_it_names_the_wheel_and_its_torch() -> None:
    data = sbom(make_record.record())
    wrong = [{**data["components"][0], "type": "somewhat"}]
    assert fault_of(json.dumps({**data, "components": wrong})) is not None, "the validator sees a fault"
    wheel = data["metadata"]["component"]
    assert (wheel["name"], wheel["version"]) == ("ops", "1.0+cu130.torch2.11")
    assert wheel["purl"].startswith("pkg:pypi/ops@1.0%2Bcu130.torch2.11?file_name=ops-1.0")
    (torch,) = [each for each in data["components"] if each["name"] == "torch"]
    assert torch["purl"] == "pkg:pypi/torch@2.11.0"


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
    assert pedigree["patches"] == [{"type": "unofficial", "diff": {"url": "a%20fix.patch"}}]
    git = sbom(make_record.record(source=GitSource("https://example.org/ops.git", "c" * 40)))
    (ancestor,) = git["metadata"]["component"]["pedigree"]["ancestors"]
    assert ancestor["version"] == "c" * 40
    assert ancestor["externalReferences"] == [{"type": "vcs", "url": "https://example.org/ops.git"}]


def test_the_same_facts_give_the_same_bytes_and_others_another_number() -> None:
    one, two = sbom(make_record.record()), sbom(make_record.record())
    assert one == two
    other = sbom(make_record.record(), LIBRARIES[:1])
    assert one["serialNumber"] != other["serialNumber"]
    assert one["metadata"]["timestamp"] == "1980-01-01T00:00:00+00:00"


BUILD = replace(make_record.BUILD, archs=(Arch(9, 0),))
TOOLCHAIN = make_record.TOOLCHAIN


def digest(
    build: Build = BUILD, recipe: Recipe | None = None, toolchain: Toolchain = TOOLCHAIN, source: str = "s" * 64
) -> str:
    return build_digest(build, recipe or make.recipe("ops"), toolchain, source)


def test_the_same_inputs_have_the_same_name() -> None:
    assert digest() == digest()
    assert len(digest()) == 64


INPUTS: list[tuple[str, dict[str, Any]]] = [
    ("build", {"extension": "other"}),
    ("build", {"version": "1.1"}),
    ("build", {"abi": AbiClass.ABI3}),
    ("build", {"abi": AbiClass.STABLE}),
    ("build", {"torch": Torch(2, 11, 1)}),
    ("build", {"cuda": Cuda(13, 2)}),
    ("build", {"pythons": (Python(3, 13),)}),
    ("build", {"archs": (Arch(9, 0, ptx=True),)}),
    ("build", {"archs": (Arch(8, 0), Arch(9, 0))}),
    ("recipe", {"env": {"WITH_X": "1"}}),
    ("recipe", {"build_requires": ("pybind11",)}),
    ("recipe", {"requires": ("numpy>=1.26",)}),
    ("recipe", {"assume_cuda": True}),
    ("recipe", {"override_architectures": True}),
    ("recipe", {"config_settings": {"--global-option": ("--cuda_ext",)}}),
    ("recipe", {"requires_torch": "source"}),
    ("toolchain", {"executor": "docker"}),
    ("toolchain", {"python": Python(3, 13)}),
    ("toolchain", {"others": {**TOOLCHAIN.others, Part.CXX: "g++ 13.3.0"}}),
    ("toolchain", {"packages": ("ninja==1.12", "torch==2.11.0")}),
]


@pytest.mark.parametrize(("of", "change"), INPUTS, ids=str)
def test_what_can_change_the_wheel_is_an_input(of: str, change: dict[str, Any]) -> None:
    inputs: dict[str, Any] = {"build": BUILD, "recipe": make.recipe("ops"), "toolchain": TOOLCHAIN}
    assert digest(**{of: replace(inputs[of], **change)}) != digest()


def test_source_and_the_format_of_builds_are_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    before = digest()
    assert digest(source="t" * 64) != before
    monkeypatch.setattr(digests, "BUILD_FORMAT", 0)
    assert digest() != before


def test_who_is_served_and_how_it_is_proven_is_none() -> None:
    more = (*BUILD.serves, Cell.parse("torch2.11.0-cu130-cp313"))
    assert digest(replace(BUILD, serves=more)) == digest()
    proven = replace(make.recipe("ops"), imports=("ops.more",), companions=("decord",), memory_per_job=1, summary="x")
    assert digest(recipe=proven) == digest()


@pytest.mark.parametrize(
    ("abi", "window", "floor"),
    [
        (AbiClass.CPYTHON, "torch==2.11.*", Torch(2, 11, 0)),
        (AbiClass.ABI3, "torch==2.11.*", Torch(2, 11, 0)),
        (AbiClass.STABLE, "torch>=2.10", Torch(2, 10, 0)),
    ],
)
def test_the_torch_a_wheel_may_stand_beside(abi: AbiClass, window: str, floor: Torch) -> None:
    build, recipe = replace(BUILD, abi=abi), replace(make.recipe("ops"), abi=(AbiRule(abi),))
    assert (required_torch(build, recipe), torch_floor(build, recipe)) == (window, floor)
    assert required_torch(build, replace(recipe, requires_torch="source")) == ""


@pytest.mark.parametrize(
    ("specifier", "window"), [(">=2.10", "torch>=2.10"), (">=2.12", "torch>=2.12"), (">=2.8", "torch>=2.10")]
)
def test_the_oldest_torch_of_a_stable_wheel_is_that_of_its_rule(specifier: str, window: str) -> None:
    rules = (AbiRule(AbiClass.STABLE, specifier), AbiRule(AbiClass.CPYTHON))
    build, recipe = replace(BUILD, abi=AbiClass.STABLE), replace(make.recipe("ops"), abi=rules)
    assert required_torch(build, recipe) == window
