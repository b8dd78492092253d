"""`buildfarm report`: which runs it reports, and where the report goes."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from builder.cli.app import app
from builder.errors import Code, UsageError
from builder.publish.runs.history import save_run
from builder.store import Store
from tests.unit.publish.runs.make import run

Report = Callable[..., Result]


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Report:
    """`buildfarm report` in an empty folder."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return lambda *argv: CliRunner().invoke(app, ["report", "--store", str(tmp_path / "store"), *argv])


@pytest.fixture
def stored(tmp_path: Path) -> list[str]:
    """Two runs in the store; their ids, the newest first."""
    made = run(tmp_path)
    reports = [json.dumps(made.report), json.dumps({"builds": [], "skips": []})]
    store = Store(tmp_path / "store")
    return [
        save_run(store, datetime(2026, 11, day, tzinfo=UTC), 1.0, text, timeline=made.timeline).id
        for day, text in ((22, reports[1]), (21, reports[0]))
    ]


def test_the_newest_run_becomes_a_page(report: Report, stored: list[str]) -> None:
    result = report()
    assert (result.exit_code, result.stdout) == (0, "")
    assert "wrote buildfarm-report.html: " in " ".join(result.stderr.split())
    assert "no builds" in Path("buildfarm-report.html").read_text()
    assert report(stored[1], "--out", "sub/other.html").exit_code == 0
    assert "1 failed, 1 refused" in Path("sub/other.html").read_text()


@pytest.mark.usefixtures("stored")
def test_markdown_goes_to_stdout_and_writes_no_page(report: Report) -> None:
    assert report("20261121", "--markdown").stdout.startswith("### ")
    assert not list(Path().iterdir())
    assert report("20261121", "--markdown", "--out", "page.html").exit_code == 0
    assert Path("page.html").exists()


@pytest.mark.parametrize(
    ("argv", "code", "where"),
    [
        ("2027", Code.NO_RUN, "2027"),
        ("2026", Code.NO_RUN, "2026"),
    ],
)
@pytest.mark.usefixtures("stored")
def test_wrong_options(argv: str, code: Code, where: str, report: Report) -> None:
    error = report(*argv.split()).exception
    assert isinstance(error, UsageError)
    assert (error.code, error.where) == (code, where)


@pytest.mark.parametrize("damaged", [{"builds": 1.5, "skips": []}, {"builds": [{"build": "b"}], "skips": []}, {}])
def test_a_damaged_report_in_the_store(damaged: object, report: Report, tmp_path: Path) -> None:
    saved = save_run(Store(tmp_path / "store"), datetime(2026, 11, 21, tzinfo=UTC), 1.0, json.dumps(damaged))
    result = report()
    assert isinstance(result.exception, UsageError)
    assert "the report in the store is damaged" in result.exception.sentence
    assert result.exception.where == saved.id


def test_a_damaged_run_in_the_store_is_no_run(report: Report, stored: list[str], tmp_path: Path) -> None:
    path = tmp_path / "store" / "runs" / stored[0] / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"logs": 1.5}))
    assert "1 failed" in report("--markdown").stdout
