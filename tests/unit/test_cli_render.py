"""`buildfarm render`: the files, the table, the JSON, and buildfarm.lock."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from builder.images.registry.lock import read_lock
from tests.unit.conftest import Call
from tests.unit.images.registry.stand_in_registry import running_registry

MATRIX = """\
torch: [2.2]
cuda: [12.1]
python: [3.11, 3.12]
extensions: [one]
"""
RECIPE = "name: one\nversion: 1.0\nsource: {path: .}\nabi: cpython\nimports: [one]\n"


@pytest.fixture(autouse=True)
def project(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A folder with a small matrix, and no container engine."""
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "extension.yaml").write_text(RECIPE)
    (tmp_path / "matrix.yaml").write_text(MATRIX)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:9")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)


def test_it_writes_the_files_and_prints_a_table(call: Call, tmp_path: Path) -> None:
    code, out, err = call("render")
    folder = tmp_path / "build" / "dockerfiles"
    names = sorted(path.name for path in folder.iterdir())
    assert (code, err) == (0, "")
    assert names == [
        "build-cu121-rockylinux8-gcc12-cp311.Dockerfile",
        "build-cu121-rockylinux8-gcc12-cp312.Dockerfile",
        "run-torch2.2.2-cu121-cp311.Dockerfile",
        "run-torch2.2.2-cu121-cp312.Dockerfile",
    ]
    assert all(name in out for name in names)
    assert "wrote Dockerfiles of 2 build images and 2 runtime images to build/dockerfiles" in out
    assert "base images without a digest (3)" in out


def test_json(call: Call, tmp_path: Path) -> None:
    code, out, _ = call("render", "--json", "--python", "3.11", "--out", tmp_path / "there")
    data = json.loads(out)
    build, run = data["images"]
    assert (code, data["schema"]) == (0, 1)
    assert build["builds"] == ["one-1.0-cpython-torch2.2.2-cu121-cp311"]
    assert build["cells"] == run["cells"] == ["torch2.2.2-cu121-cp311"]
    assert re.fullmatch(r"buildfarm/build-cu121-rockylinux8-gcc12-cp311:[0-9a-f]{12}", build["tag"])
    assert (tmp_path / build["file"]).read_text().startswith("# Rendered by buildfarm")
    assert {path.name for path in (tmp_path / "there").iterdir()} == {Path(one["file"]).name for one in (build, run)}
    assert build["base"] == "nvidia/cuda:12.1.1-devel-rockylinux8"
    assert data["unpinned"] == sorted({*build["bases"], *run["bases"]})


def test_lock_pins_the_digests_that_the_registry_reports(call: Call, tmp_path: Path) -> None:
    with running_registry() as registry:
        base, pythons = registry.add("cuda:12.1.1-devel-rockylinux8"), registry.add("manylinux_2_28:1")
        (tmp_path / "matrix.yaml").write_text(
            MATRIX + f'images: [{{cells: "*", image: "{base}", pythons: "{pythons}"}}]\n'
        )
        code, out, err = call("render", "--lock")
        assert (code, err) == (0, "")
        digests = {image: registry.digest_of(image) for image in (base, pythons)}
        registry.requests.clear()
        assert call("render") == (0, out, "")  # the lock is used, and no registry is asked
        assert registry.requests == []
    assert read_lock(tmp_path / "buildfarm.lock") == digests
    assert "without a digest" not in out
    assert "(pinned)" in out
    text = next((tmp_path / "build" / "dockerfiles").glob("build-*")).read_text()
    assert f"FROM {base}@{digests[base]} AS build" in text


def test_an_image_without_a_digest_is_an_error_and_the_others_are_pinned(call: Call, tmp_path: Path) -> None:
    with running_registry() as registry:
        pythons = registry.add("manylinux_2_28:1")
        missing = f"{registry.address}/missing:1"
        (tmp_path / "matrix.yaml").write_text(
            MATRIX + f'images: [{{cells: "*", image: "{missing}", pythons: "{pythons}"}}]\n'
        )
        code, out, err = call("render", "--lock")
        with_json = call("render", "--lock", "--json")
    assert code == with_json[0] == 4
    assert [(one["code"], one["where"]) for one in json.loads(with_json[1])["errors"]] == [("image-not-found", missing)]
    assert f"error[image-not-found]: {missing}: the registry {registry.address} has no such image" in err
    assert f"base images without a digest (1):\n  {missing}\n" in out, "no advice to run the command that has just run"
    assert list(read_lock(tmp_path / "buildfarm.lock")) == [pythons]


def test_a_base_image_that_the_matrix_pins_is_not_looked_up(call: Call, tmp_path: Path) -> None:
    digest = "sha256:" + "ef" * 32
    with running_registry() as registry:
        base, pythons = f"{registry.address}/cuda@{digest}", registry.add("manylinux_2_28:1")
        (tmp_path / "matrix.yaml").write_text(
            MATRIX + f'images: [{{cells: "*", image: "{base}", pythons: "{pythons}"}}]\n'
        )
        code, out, err = call("render", "--lock", "--json")
        assert registry.requests == ["/v2/manylinux_2_28/manifests/1"]
    assert (code, err) == (0, "")
    assert json.loads(out)["images"][0]["base"] == base
    assert json.loads(out)["unpinned"] == []


def test_the_digests_come_from_the_mirror_and_the_files_name_the_original_images(call: Call, tmp_path: Path) -> None:
    with running_registry() as registry:
        cuda = registry.add("hub/nvidia/cuda:12.1.1-devel-rockylinux8")
        for name in ("hub/nvidia/cuda:12.1.1-base-ubuntu22.04", "pypa/manylinux_2_28_x86_64:2026.10.26-1"):
            registry.add(name)
        mirrors = f"registries: {{docker.io: '{registry.address}/hub', quay.io: '{registry.address}'}}\n"
        (tmp_path / "matrix.yaml").write_text(MATRIX + mirrors)
        code, out, err = call("render", "--lock", "--json")
        assert (code, err) == (0, "")
        digest = registry.digest_of(cuda)
    lock = read_lock(tmp_path / "buildfarm.lock")
    assert lock["nvidia/cuda:12.1.1-devel-rockylinux8"] == digest
    assert json.loads(out)["images"][0]["base"] == f"nvidia/cuda:12.1.1-devel-rockylinux8@{digest}"
