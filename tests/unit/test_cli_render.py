"""`buildfarm render`: the files, the table, and buildfarm.lock."""

import os
from pathlib import Path

import pytest

from builder.images.registry import read_lock
from tests.unit.conftest import Call
from tests.unit.images.fake_engine import FakeEngine

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


DIGEST, PYTHONS = "sha256:" + "ef" * 32, "r.example/manylinux_2_28:1"


def test_lock_pins_the_digests_that_the_registry_reports(call: Call, tmp_path: Path, fake: FakeEngine) -> None:
    base = "r.example/cuda:12.1.1-devel-rockylinux8"
    fake.digests = {base: DIGEST, PYTHONS: "sha256:" + "ab" * 32}
    (tmp_path / "matrix.yaml").write_text(MATRIX + f'images: [{{cells: "*", image: "{base}", pythons: "{PYTHONS}"}}]\n')
    code, out, err = call("render", "--lock")
    assert (code, err) == (0, "")
    fake.asked.clear()
    assert call("render") == (0, out, "")  # the lock is used, and no registry is asked
    assert fake.asked == []
    assert read_lock(tmp_path / "buildfarm.lock") == fake.digests
    assert "without a digest" not in out
    assert "(pinned)" in out
    text = next((tmp_path / "build" / "dockerfiles").glob("build-*")).read_text()
    assert f"FROM {base}@{DIGEST} AS build" in text


def test_an_image_without_a_digest_is_an_error_and_the_others_are_pinned(
    call: Call, tmp_path: Path, fake: FakeEngine
) -> None:
    missing = "r.example/missing:1"
    fake.digests = {PYTHONS: DIGEST}
    images = f'images: [{{cells: "*", image: "{missing}", pythons: "{PYTHONS}"}}]\n'
    (tmp_path / "matrix.yaml").write_text(MATRIX + images)
    code, out, err = call("render", "--lock")
    assert code == 4
    assert f"error[image-not-found]: {missing}: missing:1 cannot be pulled from r.example: " in err
    assert f"base images without a digest (1):\n  {missing}\n" in out, "no advice to run the command that has just run"
    assert list(read_lock(tmp_path / "buildfarm.lock")) == [PYTHONS]


def test_a_base_image_that_the_matrix_pins_is_not_looked_up(call: Call, tmp_path: Path, fake: FakeEngine) -> None:
    base = f"r.example/cuda@{DIGEST}"
    fake.digests = {PYTHONS: DIGEST}
    (tmp_path / "matrix.yaml").write_text(MATRIX + f'images: [{{cells: "*", image: "{base}", pythons: "{PYTHONS}"}}]\n')
    code, out, err = call("render", "--lock")
    assert fake.asked == [PYTHONS]
    assert (code, err) == (0, "")
    assert "r.example/cuda (pinned)" in out
    assert "without a digest" not in out


def test_the_digests_come_from_the_mirror_and_the_files_name_the_original_images(
    call: Call, tmp_path: Path, fake: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = "nvidia/cuda:12.1.1-devel-rockylinux8"
    images = (f"hub/{cuda}", "hub/nvidia/cuda:12.1.1-base-ubuntu22.04", "pypa/manylinux_2_28_x86_64:2026.10.26-1")
    fake.digests = {f"mirror.example/{name}": DIGEST for name in images}
    monkeypatch.setenv("BUILDFARM_REGISTRIES", "docker.io=mirror.example/hub quay.io=mirror.example")
    code, out, err = call("render", "--lock")
    assert (code, err) == (0, "")
    assert read_lock(tmp_path / "buildfarm.lock")[cuda] == DIGEST
    assert f"{cuda} (pinned)" in out
