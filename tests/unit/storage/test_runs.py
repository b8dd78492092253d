"""The history of runs."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from builder.cli.options import StoreOptions
from builder.commands.folders import open_store
from builder.commands.report import ReportOptions, report
from builder.commands.store import history, history_text
from builder.errors import NothingSelectedError
from builder.progress.display import StageTime, Timeline
from builder.publish.runs.history import find_run, last_steps, runs, save_run
from builder.store import Store

REPORT: dict[str, Any] = {
    "builds": [
        {"build": "a", "wheel": "a.whl", "status": "built", "error": None, "proofs": [{"verdict": "passed"}] * 2},
        {"build": "b", "status": "failed", "error": "no nvcc"},
    ],
    "skips": [{}],
}


def test_the_report_of_each_run_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(tmp_path)
    assert history_text(runs(store)) == "No run is recorded in this store.\n"
    monkeypatch.setattr("sys.argv", ["buildfarm", "build", "--ext", "https://me:secret@host/x"])
    save_run(store, datetime(2026, 11, 21, 9, 30, tzinfo=UTC), 12.34, json.dumps(REPORT))
    save_run(store, datetime(2026, 11, 22, 9, 30, tzinfo=UTC), 2.0, json.dumps({"builds": [], "skips": []}))
    (tmp_path / "runs" / "20261120").mkdir()
    (tmp_path / "runs" / "20261120" / "run.json").write_text("{}")
    found = runs(store)
    assert "20261120/run.json is damaged or of a different version" in "".join(capsys.readouterr().err.split("\n"))
    assert [run.id[:15] for run in found] == ["20261122-093000", "20261121-093000"]
    monkeypatch.setattr("builder.publish.terminal.PLAIN_WIDTH", 500)
    line = history_text(found).splitlines()[2]
    assert [part.strip() for part in line.split("  ") if part.strip()][1:] == [
        "12 s",
        "1 failed, 1 built",
        "a, b",
        str(Path.cwd()),
        "buildfarm build --ext https://***@host/x",
    ]
    monkeypatch.setattr("builder.publish.terminal.PLAIN_WIDTH", 80)
    shown = history_text(found).splitlines()[3:]
    assert shown[0].endswith("  12 s  a, b: 1 failed, 1 built")
    assert shown[1:] == ["  buildfarm build --ext https://***@host/x", f"  in {Path.cwd()}"]
    assert found[1].counts() == {"built": 1, "failed": 1}
    one = find_run(found, "20261121")
    assert one.report == REPORT


def test_the_history_says_what_was_not_compiled_and_what_was_refused(tmp_path: Path) -> None:
    proofs = [{"verdict": "passed"}, {"verdict": "failed"}]
    refused = {"build": "c", "wheel": "c.whl", "status": "failed", "error": "c: values", "proofs": proofs}
    report = {"builds": [*REPORT["builds"], refused, {"build": "d", "wheel": "d.whl", "status": "tested"}], "skips": []}
    save_run(Store(tmp_path), datetime(2026, 11, 21, tzinfo=UTC), 1, json.dumps(report), reused=["a", "c"])
    found = runs(Store(tmp_path))
    assert "1 failed, 1 refused, 1 tested, 1 already built" in history_text(found)
    counts = found[0].counts()
    assert counts == {"failed": 1, "refused": 1, "tested": 1, "already built": 1}


def test_the_steps_of_the_newest_run_say_how_long_a_step_takes(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for day, seconds in ((20, 90.0), (21, 70.0)):
        timeline = Timeline((StageTime("a", "compile", 1.0, 1.0 + seconds),))
        save_run(store, datetime(2026, 11, day, tzinfo=UTC), 1, json.dumps(REPORT), timeline=timeline)
    save_run(store, datetime(2026, 11, 22, tzinfo=UTC), 1, json.dumps(REPORT))
    assert last_steps(store) == {("a", "compile"): 70.0}


def test_a_step_that_did_not_end_and_one_of_another_folder_say_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two projects with an extension of one name share a store."""
    store, timeline = Store(tmp_path / "store"), Timeline((StageTime("a", "compile", 0.0, 15.0),))
    failed = {"builds": [{"build": "a", "status": "failed", "error": "no nvcc"}], "skips": []}
    for report_json, unfinished in (({"builds": [], "skips": []}, ["a"]), (failed, None)):
        save_run(store, datetime.now(UTC), 1, json.dumps(report_json), unfinished=unfinished, timeline=timeline)
    assert last_steps(store) == {}
    save_run(store, datetime.now(UTC), 1, json.dumps(REPORT), timeline=timeline)
    assert last_steps(store) == {("a", "compile"): 15.0}
    monkeypatch.chdir(tmp_path)
    assert last_steps(store) == {}


def test_a_running_command_is_named_where_its_run_is_missed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    running = open_store(tmp_path)
    history(StoreOptions(store=tmp_path))
    with pytest.raises(NothingSelectedError, match="no run is recorded"):
        report(ReportOptions(store=tmp_path))
    sentence = "a command uses this store now: `build` and `smoke` record their run when they end"
    assert " ".join(capsys.readouterr().err.split()) == f"{sentence} {sentence}"
    del running
    history(StoreOptions(store=tmp_path))
    assert capsys.readouterr().err == ""


def test_report_takes_the_newest_run_of_this_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Several projects share a store; a page about another project would look like one about this."""
    store = tmp_path / "store"
    for day, name in ((20, "mine"), (21, "other")):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        built: dict[str, Any] = {"build": name, "wheel": f"{name}.whl", "status": "built", "error": None}
        built |= {"hints": [], "serves": []}
        report_json = json.dumps({"builds": [built], "skips": []})
        save_run(open_store(store), datetime(2026, 11, day, tzinfo=UTC), 1, report_json)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    with pytest.raises(NothingSelectedError, match="no run was started in this folder") as caught:
        report(ReportOptions(store=store))
    assert f"the newest run is of other, in {tmp_path / 'other'}: `buildfarm report 20261121" in caught.value.hints[0]
    assert not list(Path.cwd().iterdir())
    monkeypatch.chdir(tmp_path / "mine")
    monkeypatch.setattr("sys.argv", ["buildfarm", "build"])
    report(ReportOptions(store=store))
    assert f"of mine: 1 built, in {tmp_path / 'mine'}" in "".join(capsys.readouterr().err.split("\n"))
    assert Path("buildfarm-report.html").is_file()
