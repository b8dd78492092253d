"""`buildfarm report`: which runs, where it goes, its Markdown, and HTML; hostile text stays text."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from builder.cli.app import app
from builder.commands.report import report_page
from builder.errors import Code, NothingSelectedError, UsageError
from builder.publish.runs.history import plain, save_run
from builder.publish.runs.markdown import append_summary, code, fenced, report_markdown
from builder.store import Store
from tests.unit.publish.html_page import Page
from tests.unit.publish.runs.make import CELL, FAILED, GOOD, HOSTILE, REFUSED, entry, proof, run

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
def test_an_unknown_run(report: Report) -> None:
    error = report("2027").exception
    assert isinstance(error, NothingSelectedError)
    assert (error.code, error.where) == (Code.NO_RUN, "2027")


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
    assert "1 failed" in " ".join(report().stderr.split())


def outside_of_code(text: str) -> str:
    """Markdown without code blocks and code spans, read as CommonMark does."""
    blocks = re.sub(r"^(`{3,})text\n.*?^\1`*$", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"(?<!`)(`+)(?!`).*?(?<!`)\1(?!`)", "", blocks)


def test_hostile_text_is_only_inside_of_code(tmp_path: Path) -> None:
    text = report_markdown(run(tmp_path))
    outside = outside_of_code(text)
    for word in ("script", "evil", "bold", "everyone", "onerror", "`"):
        assert word not in outside
    assert set(re.findall("<[^>]*>", outside)) == {"<details>", "<summary>", "</summary>", "</details>"}
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text)


def test_failed_builds_come_first_with_reason_hint_and_log(tmp_path: Path) -> None:
    text = report_markdown(run(tmp_path))
    assert text.startswith("### buildfarm build of `failed, good, refused`: 1 failed, 1 refused, 1 built\n")
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows[:2]] == [FAILED, REFUSED]
    assert f"| `{GOOD}` | built | 1:30 min | 1 of 2 | 6 passed, 0 failed, 1 not run |" in rows
    assert text.index(f"#### `{FAILED}`: failed") < text.index(f"#### `{REFUSED}`: refused")
    assert f"\n{'x' * 300}\n" in text
    assert f"- `GPU in {GOOD}: no GPU`\n" in text.partition("#### Checks that did not run")[2]


def test_remarks_have_a_heading_of_their_own(tmp_path: Path) -> None:
    lost = proof("gradients", "not run", reason="ns::op (plain): it has no gradient", remark=True)
    builds = [entry(GOOD, "built", lost, proof("values", "not run", reason="no cases"))]
    text = report_markdown(run(tmp_path, report={"builds": builds, "skips": []}))
    assert "#### Remarks\n\n- `gradients: ns::op (plain): it has no gradient`\n\n#### Checks that" in text
    assert text.count("it has no gradient") == 1


@pytest.mark.parametrize("text", ["a|b", "a\\|b", "`", "``x`", "a\nb", "| `` \\\\|", HOSTILE])
def test_a_code_span_in_a_table_is_one_cell(text: str) -> None:
    span = code(text, cell=True)
    assert "\n" not in span
    assert not outside_of_code(span).strip()
    assert not re.sub(r"\\.", "", span).count("|"), "cmark-gfm ends a cell at each pipe without a backslash"


def test_no_line_ends_a_code_block() -> None:
    lines = ["```", "````text", "~~~", "</details>"]
    assert outside_of_code(fenced(lines)) == ""


def test_the_limit_of_github(tmp_path: Path) -> None:
    """GitHub shows nothing of a summary that is longer than 1 MiB."""
    one = run(tmp_path)
    many = [one.report["builds"][2] | {"build": f"{FAILED}-{number}"} for number in range(50)]
    large = replace(one, report={"builds": many, "skips": []}, logs={each["build"]: one.logs[FAILED] for each in many})
    text = report_markdown(large)
    assert len(text.encode()) < 2**20
    assert "Of 30 more builds, `buildfarm report` shows why they failed." in text


def test_a_summary_is_appended(tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    one = run(tmp_path)
    append_summary(summary, one)
    append_summary(summary, one)
    assert summary.read_text().count("### buildfarm build") == 2


@pytest.fixture(scope="module")
def html(tmp_path_factory: pytest.TempPathFactory) -> str:
    return report_page(run(tmp_path_factory.mktemp("run")))


@pytest.fixture(scope="module")
def page(html: str) -> Page:
    return Page(html)


def test_nothing_of_a_log_or_a_wheel_becomes_markup(html: str, page: Page) -> None:
    assert {tag for tag, _ in page.tags} == {
        "a", "body", "code", "dd", "details", "div", "dl", "dt", "h1", "h2", "h3", "head", "header", "html", "li",
        "link", "main", "meta", "nav", "p", "pre", "section", "span", "style", "summary", "table", "tbody", "td", "th",
        "thead", "title", "tr", "ul",
    }  # fmt: skip
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on") or name == "style"]
    assert "<script>alert(1)</script>" in page.text, "it is shown as text"
    assert "{{ 7 * 7 }}" in page.text
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", html)
    assert max(map(len, html.splitlines())) < 40_000


def test_no_external_file_and_no_script(page: Page) -> None:
    assert not page.all("src")
    assert all(value.startswith(("#", "data:")) for value in page.all("href"))
    (policy,) = [tag["content"] for name, tag in page.tags if name == "meta" and "http-equiv" in tag]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")


def test_ids_headings_and_labels(page: Page) -> None:
    ids = page.all("id")
    assert len(ids) == len(set(ids))
    assert {value[1:] for value in page.all("href") if value.startswith("#")} <= set(ids)
    assert {name for value in page.all("aria-labelledby") for name in value.split()} <= set(ids)
    assert page.headings[0] == 1
    assert page.headings.count(1) == 1
    assert all(after <= before + 1 for before, after in zip(page.headings, page.headings[1:], strict=False))
    for tag, attributes in page.tags:
        if attributes.get("class") in {"scroll", "log"}:
            assert attributes.get("tabindex") == "0", f"{tag}: the keyboard must be able to scroll it"
            assert attributes.get("aria-label")


def test_failed_builds_come_first_and_are_open(page: Page) -> None:
    builds = [
        attributes for tag, attributes in page.tags if tag == "details" and attributes.get("id", "").startswith("b")
    ]
    assert ["open" in attributes for attributes in builds] == [True, True, False]
    order = [page.text.index(f"{word} {name}") for name, word in
             ((FAILED, "failed"), (REFUSED, "refused"), (GOOD, "built"))]  # fmt: skip
    assert order == sorted(order)


def test_figures_proofs_and_the_log(page: Page) -> None:
    row = f"built {GOOD} 1:30 min 1 of 2 steps 6 passed, 0 failed, 1 not run"
    assert row in page.text
    assert f"{CELL}: CPU 5 passed, 0 failed, 1 not run" in page.text
    assert f"{GOOD} compile 0:02 1:08 min" in page.text
    assert "failed values: ns::op (plain): " in page.text
    assert '"shape": [ 1, 2 ]' in page.text
    assert " line 122 </pre>" in page.text
    assert "\ufffd\ufffd end" in page.text
    assert "2 cells: never built" in page.text


def test_a_run_without_builds_and_without_a_timeline(tmp_path: Path) -> None:
    empty = run(tmp_path, report={"builds": [], "skips": []}, logs={}, timeline=None)
    text = Page(report_page(empty)).text
    for words in ("no builds", "No build ended.", "The record of this run has no timeline."):
        assert words in text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[1;31merror\x1b[0m: x", "error: x"),
        ("\x1b]8;;https://evil.example\x1b\\link\x1b]8;;\x07", "link"),
        ("10%\r50%\r100%\n", "100%\n"),
        ("a\r\nb", "a\nb"),
        ("a\x00b", "a\\x00b"),
        ("a\u202eb", "a\\u202eb"),
        ("a\tb", "a\tb"),
        ("x" * 12, "xxxxxxxxxx … (2 more characters)"),
    ],
)
def test_plain_text(text: str, shown: str) -> None:
    assert plain(text, 10) == shown
