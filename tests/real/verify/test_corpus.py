"""`verify` finds every planted fault under the right name, and raises no false alarm for sound wheels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from builder.cli.app import app
from builder.errors import Exit
from tests.real.verify.corpus import Fault, Lib, Wheel, with_lib, with_op
from tests.real.verify.faults import FAULTS, SOUND


def verify(wheel: Path, store: Path, *options: str) -> tuple[int, list[dict[str, Any]]]:
    """The exit code and the proofs of one wheel."""
    done = CliRunner().invoke(app, ["verify", str(wheel), "--store", str(store), "--json", *options])
    assert done.exit_code in (Exit.OK, Exit.FAILED), done.output
    (one,) = json.loads(done.stdout)
    return done.exit_code, one["proofs"]


@pytest.mark.parametrize("name", FAULTS)
def test_planted_fault_is_found_under_its_name(name: str, stubs: Path, store: Path, tmp_path: Path) -> None:
    fault: Fault = FAULTS[name]
    code, proofs = verify(fault.wheel.write(tmp_path, stubs), store, *fault.options)
    failed = {proof["check"]: proof["reason"] for proof in proofs if proof["verdict"] == "failed"}
    assert fault.check in failed, proofs
    assert fault.says in failed[fault.check]
    assert code == Exit.FAILED


@pytest.mark.parametrize("name", SOUND)
def test_no_false_alarm(name: str, stubs: Path, store: Path, tmp_path: Path) -> None:
    wheel: Wheel = SOUND[name]
    code, proofs = verify(wheel.write(tmp_path, stubs), store)
    assert [proof for proof in proofs if proof["verdict"] == "failed"] == []
    assert {proof["verdict"] for proof in proofs if proof["check"] == "linkage"} == {"passed"}
    assert code == Exit.OK


def test_remarks_are_no_failures(stubs: Path, store: Path, tmp_path: Path) -> None:
    lib = Lib(flags=("-Wl,-rpath,/opt/cuda/lib64", "-Wl,--disable-new-dtags"))
    wheel = with_lib(lib, root_is_purelib="true", requires=("torch>=2.11",))
    code, proofs = verify(wheel.write(tmp_path, stubs), store)
    remarks = {proof["check"]: " ".join(proof["evidence"].get("remarks", ())) for proof in proofs}
    assert "`Root-Is-Purelib: true`" in remarks["contents"]
    assert "/opt/cuda/lib64" in remarks["loader"]
    assert "also links with torch 2.10" in remarks["window"]
    assert "no upper limit for torch" in remarks["window"]
    assert "whose symbols are unknown: `buildfarm inventory add 2.13 2.14 2.15`" in remarks["window"]
    assert code == Exit.OK


def test_text_names_the_real_floor_and_the_gpus(stubs: Path, store: Path, tmp_path: Path) -> None:
    wheel = Wheel().write(tmp_path, stubs)
    text = CliRunner().invoke(app, ["verify", str(wheel), "--store", str(store)]).stdout
    assert "the libraries need manylinux_2_5_x86_64" in text
    assert "native on A100 (8.0)" in text
    assert "cannot run on V100 (7.0), Jetson AGX Xavier (7.2), T4 (7.5), Jetson AGX Orin (8.7)" in text


def test_pure_python_wheel_has_nothing_to_link(stubs: Path, store: Path, tmp_path: Path) -> None:
    code, proofs = verify(Wheel(libs={}, tag="py3-none-any", version="1.0").write(tmp_path, stubs), store)
    reasons = {proof["check"]: (proof["verdict"], proof["reason"]) for proof in proofs}
    assert reasons["payload"] == ("passed", "pure Python, without a library")
    assert code == Exit.OK


def test_window_is_what_metadata_allows_and_links(stubs: Path, store: Path, tmp_path: Path) -> None:
    """Symbols alone do not prove a C++ ABI, so torch releases that METADATA excludes are a remark only."""
    _, proofs = verify(Wheel().write(tmp_path, stubs), store)
    (window,) = [proof for proof in proofs if proof["check"] == "window"]
    assert window["evidence"]["window"] == ["2.11"]
    assert window["evidence"]["links"] == ["2.10", "2.11", "2.12"]
    assert "does not prove that torch's C++ classes have the same layout" in " ".join(window["evidence"]["remarks"])


def test_wheel_without_a_requirement_of_torch_fails_once(stubs: Path, store: Path, tmp_path: Path) -> None:
    """The check `metadata` names the fault; the window says which torch would be right."""
    _, proofs = verify(with_op(torch="added", requires=(), version="1.0").write(tmp_path, stubs), store)
    assert [proof["check"] for proof in proofs if proof["verdict"] == "failed"] == ["metadata"]
    assert [proof["reason"] for proof in proofs if proof["check"] == "window"] == ["links with torch 2.12"]


@pytest.mark.parametrize(
    ("record", "failed"),
    [
        ('{"recipe": {"cuda": "optional"}}', []),
        ('{"recipe": {}}', ["payload", "device-code"]),
        ('{"recipe": "optional"}', ["payload", "device-code"]),
        ("{", ["payload", "device-code"]),
    ],
)
def test_the_record_of_the_build_says_whether_gpu_code_is_required(
    record: str, failed: list[str], stubs: Path, store: Path, tmp_path: Path
) -> None:
    """The version names a CUDA in every wheel that buildfarm builds."""

    def with_record(members: dict[str, bytes]) -> None:
        members["ops-1.0+cu130.dist-info/buildfarm.json"] = record.encode()

    wheel = with_lib(Lib(gpu=None), after=with_record)
    _, proofs = verify(wheel.write(tmp_path, stubs), store)
    without = [one["check"] for one in proofs if one["verdict"] == "failed" and one["check"] != "record"]
    assert without == failed
