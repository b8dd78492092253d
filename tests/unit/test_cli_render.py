"""`buildfarm render` as a person and a program see it: files, a table, data, the lock."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from builder.__main__ import _run
from builder.images.lock import read_lock
from tests.unit.images.stand_in_registry import running_registry

Call = Callable[..., tuple[int, str, str]]
MATRIX = """\
torch: [2.2]
cuda: [12.1]
python: [3.11, 3.12]
extensions: [one]
"""
RECIPE = "name: one\nversion: 1.0\nsource: {path: .}\nabi: cpython\nimports: [one]\n"


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Call:
    """`buildfarm render` in this process, in a folder with a small matrix and with no engine to be found."""
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "extension.yaml").write_text(RECIPE)
    (tmp_path / "matrix.yaml").write_text(MATRIX)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:9")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)

    def call(*words: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["buildfarm", "render", *map(str, words)])
        code = _run()
        out, err = capsys.readouterr()
        return code, out, err

    return call


def test_it_writes_the_files_and_says_who_uses_them(call: Call, tmp_path: Path) -> None:
    code, out, err = call()
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
    assert "in build/dockerfiles: 2 to build in, 2 to run cells in" in out
    assert "not pinned (3;" in out


def test_a_selection_and_a_folder(call: Call, tmp_path: Path) -> None:
    code, _, _ = call("--python", "3.12", "--out", tmp_path / "there")
    assert code == 0
    assert len(list((tmp_path / "there").iterdir())) == 2


def test_data_for_programs(call: Call, tmp_path: Path) -> None:
    code, out, _ = call("--json", "--python", "3.11")
    data = json.loads(out)
    build, run = data["images"]
    assert (code, data["schema"]) == (0, 1)
    assert build["builds"] == ["one-1.0-cpython-torch2.2.2-cu121-cp311"]
    assert build["cells"] == run["cells"] == ["torch2.2.2-cu121-cp311"]
    assert re.fullmatch(r"buildfarm/build-cu121-rockylinux8-gcc12-cp311:[0-9a-f]{12}", build["tag"])
    assert (tmp_path / build["file"]).read_text().startswith("# Rendered by buildfarm")
    assert build["base"] == "nvidia/cuda:12.1.1-devel-rockylinux8"
    assert data["unpinned"] == sorted({*build["bases"], *run["bases"]})


def test_lock_asks_the_registry_and_pins(call: Call, tmp_path: Path) -> None:
    with running_registry() as registry:
        base, pythons = registry.add("cuda:12.1.1-devel-rockylinux8"), registry.add("manylinux_2_28:1")
        (tmp_path / "matrix.yaml").write_text(
            MATRIX + f'images: [{{cells: "*", image: "{base}", pythons: "{pythons}"}}]\n'
        )
        code, out, err = call("--lock")
        assert (code, err) == (0, "")
        digests = {image: registry.digest_of(image) for image in (base, pythons)}
        registry.asked.clear()
        assert call() == (0, out, "")  # what was locked stays, and nobody is asked
        assert registry.asked == []
    assert read_lock(tmp_path / "buildfarm.lock") == digests
    assert "not pinned" not in out
    assert "(pinned)" in out
    text = next((tmp_path / "build" / "dockerfiles").glob("build-*")).read_text()
    assert f"FROM {base}@{digests[base]} AS build" in text


def test_what_cannot_be_locked_is_said_and_the_rest_is_done(call: Call, tmp_path: Path) -> None:
    with running_registry() as registry:
        pythons = registry.add("manylinux_2_28:1")
        gone = f"{registry.address}/gone:1"
        (tmp_path / "matrix.yaml").write_text(
            MATRIX + f'images: [{{cells: "*", image: "{gone}", pythons: "{pythons}"}}]\n'
        )
        code, out, err = call("--lock")
    assert code == 4
    assert f"error: {gone}: the registry {registry.address} has no such image" in err
    assert "not pinned (1;" in out
    assert list(read_lock(tmp_path / "buildfarm.lock")) == [pythons]


def test_a_base_that_the_matrix_pins_itself_is_not_asked_for(call: Call, tmp_path: Path) -> None:
    digest = "sha256:" + "ef" * 32
    with running_registry() as registry:
        base, pythons = f"{registry.address}/cuda@{digest}", registry.add("manylinux_2_28:1")
        (tmp_path / "matrix.yaml").write_text(
            MATRIX + f'images: [{{cells: "*", image: "{base}", pythons: "{pythons}"}}]\n'
        )
        code, out, err = call("--lock", "--json")
        assert registry.asked == ["/v2/manylinux_2_28/manifests/1"]
    assert (code, err) == (0, "")
    assert json.loads(out)["images"][0]["base"] == base
    assert json.loads(out)["unpinned"] == []


def test_a_broken_lock_stops_it(call: Call, tmp_path: Path) -> None:
    (tmp_path / "buildfarm.lock").write_text("version = 7\n")
    code, out, err = call()
    assert (code, out) == (2, "")
    assert "is of version 7" in err


def test_nothing_selected_is_its_own_code(call: Call) -> None:
    code, _, err = call("--torch", "2.11")
    assert code == 3
    assert "does not list torch 2.11" in err
