"""What a wheel says of how it was made: read back as it was, and nothing of the machine in it."""

from __future__ import annotations

import hashlib
import json
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builder.errors import Code, UsageError
from builder.matrix.axes import Python
from builder.matrix.config import GitSource, SdistSource
from builder.records import BuildRecord, CacheStatistics, Part, Record, Toolchain, read_record, recorded_settings
from tests.conftest import coded
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


def test_what_is_no_wheel_is_said(tmp_path: Path) -> None:
    file = tmp_path / "ops.whl"
    file.write_text("no zip")
    with pytest.raises(UsageError, check=coded(Code.WHEEL_DAMAGED)):
        read_record(file)


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
        Part.PATCHELF: "0.17", Part.PYTHON_VERSION: "3.12.1", Part.SCCACHE: None, Part.SCRIPTS: "s",
        Part.REQUESTED_CUDA: "CUDA 12.1", Part.UV: "0.13", Part.ZLIB: "1.3",
    }  # fmt: skip
    packages = ("ninja==1.12", "torch==2.11.0")
    toolchain = Toolchain(executor="docker", python=Python(3, 12), packages=packages, others=values)
    parts = {
        "auditwheel": "6.8", "base": "b", "base digest": "d", "base id": "i", "c++": "g++ 12.2.0", "cc": "gcc",
        "cibuildwheel": "4", "cyclonedx-python-lib": "11", "image": "t", "nvcc": "",
        "packages": "ninja==1.12 torch==2.11.0", "patchelf": "0.17", "python": "3.12.1", "scripts": "s",
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
