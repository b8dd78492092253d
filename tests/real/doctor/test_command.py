"""The command `doctor`: the machine file, what is printed, and the JSON for a bug report."""

import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress

import pytest

from builder.__main__ import run_command
from builder.errors import Exit
from tests.real.doctor.make import Patient


def call(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    """`buildfarm doctor` in this process."""
    monkeypatch.setattr(sys, "argv", ["buildfarm", "doctor", *map(str, arguments)])
    return run_command()


def test_the_text_has_the_fault_its_cause_and_its_cure(
    patient: Patient, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    assert call(monkeypatch, "--python", patient.python) == Exit.FAILED
    out = capsys.readouterr().out
    assert "fault: no folder of sys.path has torch" in out
    assert "why: `import torch` fails with ModuleNotFoundError" in " ".join(out.split())
    assert "cure: " in out
    assert out.endswith("1 fault\n")


SECRETS: Sequence[tuple[str, str]] = (
    ("SECRET_TOKEN", "hunter2"),
    ("UV_DEFAULT_INDEX", "https://user:hunter2@index.example/simple"),
    ("LD_LIBRARY_PATH", "/opt/https://user:hunter2@host/lib"),
)


def test_json_has_no_secrets(
    patient: Patient, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    patient.has_torch()
    for name, value in SECRETS:
        monkeypatch.setenv(name, value)
    (patient.site_packages / "torch-2.11.0.dist-info" / "direct_url.json").write_text(
        json.dumps({"url": "https://user:hunter2@files.example/torch.whl"})
    )
    call(monkeypatch, "--python", patient.python, "--json")
    text = capsys.readouterr().out
    data = json.loads(text)
    assert "hunter2" not in text
    assert "SECRET_TOKEN" not in text
    assert set(data) >= {"buildfarm", "python", "machine", "packages", "variables", "findings"}


def test_without_python_the_active_environment_is_judged(
    patient: Patient, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    patient.has_torch()
    monkeypatch.setenv("VIRTUAL_ENV", str(patient.python.parents[1]))
    assert call(monkeypatch, "--json") == Exit.OK
    data = json.loads(capsys.readouterr().out)
    assert data["torches"][0]["folder"] == str(patient.site_packages)


def test_without_any_environment_the_user_is_asked_for_one(
    patient: Patient, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A torch in the environment of buildfarm would serve nobody."""
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "executable", str(patient.python))
    assert call(monkeypatch) == Exit.USAGE
    assert "or name its Python: `buildfarm doctor --python env/bin/python`" in " ".join(capsys.readouterr().err.split())
    patient.has_torch()
    assert call(monkeypatch) == Exit.OK


def test_a_python_in_the_current_folder(
    patient: Patient, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`./python` was looked for in PATH."""
    monkeypatch.chdir(patient.python.parent)
    monkeypatch.setenv("PATH", os.defpath)
    call(monkeypatch, "--python", f"./{patient.python.name}", "--json")
    assert json.loads(capsys.readouterr().out)["python"]["executable"] == str(patient.python)


DAMAGED: Sequence[tuple[str, bytes | None]] = (
    ("METADATA", None),
    ("METADATA", b"\xff\xfe"),
    ("METADATA", b"Metadata-Version: 2.1\nName: broken\n"),
    ("METADATA", b"Metadata-Version: 2.1\nName: broken\nVersion: not one\n"),
    ("METADATA", b"Metadata-Version: 2.1\nName: broken\nVersion: 1\nRequires-Dist: ???\n"),
    ("RECORD", b"\xff\xfe"),
    ("RECORD", b"a.so,sha256=,x,y,z\n../../b.so,,\n/etc/c.so,md5=\n"),
    ("RECORD", None),
    ("direct_url.json", b"{"),
    ("direct_url.json", b'[{"vcs_info": 1}]'),
)


def test_damaged_metadata_does_not_stop_doctor(
    patient: Patient, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with suppress(ImportError):  # Dask imports it on Python 3.11; it then answers in place of the standard library
        import importlib_metadata  # noqa: F401

    patient.has_torch()
    for number, (name, data) in enumerate(DAMAGED):
        info = patient.site_packages / f"broken{number}-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: broken{number}\nVersion: 1\n")
        (info / name).unlink(missing_ok=True)
        if data is not None:
            (info / name).write_bytes(data)
    left = patient.site_packages / "~orch-2.9.0.dist-info"  # which installers ignore, and no second torch
    left.mkdir()
    (left / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.9.0\n")
    assert call(monkeypatch, "--python", patient.python) == Exit.OK, capsys.readouterr().err
