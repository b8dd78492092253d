"""`verify` of an installed package: by its name in the current environment, and by its `.dist-info` folder."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from builder.cli.app import app
from builder.errors import Exit, UsageError
from tests.real.verify.corpus import Wheel


@pytest.fixture
def site(stubs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The site-packages of an environment with the sound wheel, as pip installs it."""
    site = tmp_path / "env" / "lib" / "python3.12" / "site-packages"
    with zipfile.ZipFile(Wheel().write(tmp_path, stubs)) as archive:
        archive.extractall(site)
    info = site / "ops-1.0+cu130.dist-info"
    (info / "INSTALLER").write_text("pip\n")
    with (info / "RECORD").open("a") as record:
        record.write(
            f"{info.name}/INSTALLER,sha256=x,4\nops/__pycache__/__init__.cpython-312.pyc,,\n../../../bin/ops,,\n"
        )
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "env"))
    return site


def verify(what: str, store: Path) -> dict[str, Any]:
    done = CliRunner().invoke(app, ["verify", what, "--store", str(store), "--json"])
    assert done.stdout, done.exception
    (one,) = json.loads(done.stdout)
    found: dict[str, Any] = one
    return found


@pytest.mark.parametrize("how", ["ops", "OPS", ".dist-info"])
def test_sound_package(how: str, site: Path, store: Path) -> None:
    found = verify(str(site / "ops-1.0+cu130.dist-info") if how == ".dist-info" else how, store)
    assert found["wheel"] == "ops-1.0+cu130-cp312-cp312-manylinux_2_17_x86_64.whl"
    assert not found["failed"], found
    assert {proof["check"] for proof in found["proofs"]} >= {"linkage", "record", "tags", "metadata", "window"}


def test_file_changed_after_the_installation(site: Path, store: Path) -> None:
    (site / "ops" / "__init__.py").write_text("import os\n")
    failed = [proof for proof in verify("ops", store)["proofs"] if proof["verdict"] == "failed"]
    assert [proof["reason"] for proof in failed] == [
        "ops/__init__.py differs from its hash in RECORD, so the wheel was changed after it was built"
    ]


def test_file_that_was_deleted(site: Path, store: Path) -> None:
    (site / "ops" / "__init__.py").unlink()
    failed = [proof for proof in verify("ops", store)["proofs"] if proof["verdict"] == "failed"]
    assert [proof["check"] for proof in failed] == ["record"]


@pytest.mark.usefixtures("site")
def test_package_that_is_not_installed(store: Path) -> None:
    done = CliRunner().invoke(app, ["verify", "other", "--store", str(store)])
    assert isinstance(done.exception, UsageError)
    assert "no package other is installed" in str(done.exception)


def test_folder_without_record(site: Path, store: Path) -> None:
    (site / "ops-1.0+cu130.dist-info" / "RECORD").unlink()
    done = CliRunner().invoke(app, ["verify", "ops", "--store", str(store)])
    assert done.exit_code == Exit.USAGE
    assert "has no usable RECORD" in " ".join(done.stderr.split())
