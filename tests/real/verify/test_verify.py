"""`verify` finds every planted fault under the right name, raises no false alarm, and prints what it found."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from builder.cli.app import app
from builder.errors import Exit
from tests.real.verify.corpus import NATIVE, SASS, Fault, Lib, Wheel, with_lib, with_op
from tests.real.verify.faults import FAULTS, SOUND


def run(store: Path, *words: object) -> Result:
    """`buildfarm verify` with the made-up torch releases."""
    return CliRunner().invoke(app, ["verify", *map(str, words), "--store", str(store)])


def verify(wheel: object, store: Path, *options: str) -> tuple[int, list[dict[str, Any]]]:
    """The exit code and the proofs of one wheel."""
    done = run(store, wheel, "--json", *options)
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
    wheel = with_lib(lib, pure=True, requires=("torch>=2.11",))
    code, proofs = verify(wheel.write(tmp_path, stubs), store)
    remarks = {proof["check"]: " ".join(proof["evidence"].get("remarks", ())) for proof in proofs}
    assert "`Root-Is-Purelib: true`" in remarks["contents"]
    assert "/opt/cuda/lib64" in remarks["loader"]
    assert "also links with torch 2.10" in remarks["window"]
    assert "no upper limit for torch" in remarks["window"]
    reads = "`buildfarm verify` with `--torch 2.13 --torch 2.14 --torch 2.15` reads them"
    assert f"the symbols of torch 2.13 to 2.15 are unknown: {reads}" in remarks["window"]
    assert code == Exit.OK


def test_pure_python_wheel_has_nothing_to_link(stubs: Path, store: Path, tmp_path: Path) -> None:
    code, proofs = verify(Wheel(libs={}, tag="py3-none-any", version="1.0").write(tmp_path, stubs), store)
    reasons = {proof["check"]: (proof["verdict"], proof["reason"]) for proof in proofs}
    assert reasons["payload"] == ("passed", "pure Python, without a library")
    assert code == Exit.OK


def test_what_is_said_of_a_sound_wheel(stubs: Path, store: Path, tmp_path: Path) -> None:
    """Symbols alone do not prove a C++ ABI, so torch releases that METADATA excludes are a remark only."""
    wheel = Wheel().write(tmp_path, stubs)
    code, proofs = verify(wheel, store, "--max-size", "300MB")
    of = {proof["check"]: proof for proof in proofs}
    evidence = of["window"]["evidence"]
    assert (code, evidence["window"], evidence["links"]) == (Exit.OK, ["2.11"], ["2.10", "2.11", "2.12"])
    assert "does not prove that torch's C++ classes have the same layout" in " ".join(evidence["remarks"])
    assert (of["size"]["verdict"], of["size"]["reason"][-22:]) == ("passed", "B of at most 286.1 MiB")
    text = run(store, wheel).stdout
    assert "the libraries need manylinux_2_5_x86_64" in text
    assert "native on A100 (8.0)" in text
    assert "cannot run on V100 (7.0), Jetson AGX Xavier (7.2), T4 (7.5), Jetson AGX Orin (8.7)" in text
    assert "of at most" not in text, "no limit, no check"


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


def test_files_that_are_no_readable_wheels_do_not_stop_the_others(stubs: Path, store: Path, tmp_path: Path) -> None:
    good = Wheel().write(tmp_path, stubs)
    broken = Wheel(libs={"ops/_C.so": Lib().compiled(stubs)[:100]}).write(tmp_path / "broken", stubs)
    bad = {
        tmp_path / "damaged-1.0-py3-none-any.whl": "wheel-damaged",
        broken: "wheel-damaged",
        good.rename(tmp_path / "my wheel (1).whl"): "wheel-mislabelled",
        tmp_path / "b\udcff#1-1.0-py3-none-any.whl": "wheel-mislabelled",
    }
    for path in bad:
        if path.name.endswith("-1.0-py3-none-any.whl"):
            path.write_bytes(b"no zip")
    good = Wheel().write(tmp_path, stubs)
    done = run(store, *bad, good)
    assert done.exit_code == Exit.USAGE, done.output
    assert f"{good.name}  " in done.stdout
    assert "damaged-1.0-py3-none-any.whl: this wheel cannot be read" in " ".join(done.stderr.split())
    judged, *others = json.loads(run(store, *bad, good, "--json").stdout)
    assert (judged["wheel"], judged["failed"]) == (good.name, False)
    assert [(one["wheel"], one["failed"], one["error"]["code"]) for one in others] == [
        (path.name, True, code) for path, code in bad.items()
    ]


def test_failure_names_the_largest_libraries_and_their_architectures(stubs: Path, store: Path, tmp_path: Path) -> None:
    more = Lib("int table[200000] = {1};\n" + Lib().source, gpu=(*NATIVE, (SASS, 75, 0)))
    wheel = Wheel(libs={**Wheel().libs, "ops/_large.so": more}).write(tmp_path, stubs)
    _, proofs = verify(wheel, store, "--max-size", "1KiB")
    (reason,) = [proof["reason"] for proof in proofs if proof["verdict"] == "failed"]
    assert "more than its limit of 1 KiB; unpacked, the largest libraries are ops/_large.so with 79" in reason
    assert "(GPU code: sm_" in reason
    assert reason.index("ops/_large.so") < reason.index("ops/_C.")
