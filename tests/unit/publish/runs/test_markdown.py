"""The Markdown of the report: its size, its order, and hostile text only inside of code."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from builder.log import console
from builder.publish.runs.markdown import LIMIT, append_summary, code, fenced, report_markdown
from builder.publish.runs.view import report_of
from tests.unit.publish.runs.make import CELL, FAILED, GOOD, HOSTILE, OTHER, REFUSED, entry, proof, run


def outside_of_code(text: str) -> str:
    """Markdown without code blocks and code spans, read as CommonMark does."""
    blocks = re.sub(r"^(`{3,})text\n.*?^\1`*$", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"(?<!`)(`+)(?!`).*?(?<!`)\1(?!`)", "", blocks)


def test_hostile_text_is_only_inside_of_code(tmp_path: Path) -> None:
    text = report_markdown(report_of(run(tmp_path)))
    outside = outside_of_code(text)
    for word in ("script", "evil", "bold", "everyone", "onerror", "`"):
        assert word not in outside
    assert set(re.findall("<[^>]*>", outside)) == {"<details>", "<summary>", "</summary>", "</details>"}
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text)


def test_failed_builds_come_first_with_reason_hint_and_log(tmp_path: Path) -> None:
    text = report_markdown(report_of(run(tmp_path)))
    assert text.startswith(
        "### buildfarm build of `failed, good, refused and 1 more`: 1 failed, 1 refused, 1 not finished, 1 built\n"
    )
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows[:2]] == [FAILED, REFUSED]
    assert f"| `{GOOD}` | built | 1:30 min | 1 of 2 | 6 passed, 0 failed, 1 not run |" in rows
    assert text.index(f"#### `{FAILED}`: failed") < text.index(f"#### `{REFUSED}`: refused")
    assert "(99600 more characters)" in text
    assert f"- `GPU in {GOOD}: no GPU`\n" in text.partition("#### Checks that did not run")[2]


def test_remarks_have_a_heading_of_their_own(tmp_path: Path) -> None:
    lost = proof("gradients", "not run", reason="ns::op (plain): it has no gradient", remark=True)
    builds = [entry(GOOD, "built", lost, proof("values", "not run", reason="no cases"))]
    text = report_markdown(report_of(run(tmp_path, report={"builds": builds, "skips": []}, unfinished=())))
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
    one = run(tmp_path)
    many = [one.report["builds"][2] | {"build": f"{FAILED}-{number}"} for number in range(800)]
    large = replace(one, report={"builds": many, "skips": []}, logs={each["build"]: one.logs[FAILED] for each in many})
    text = report_markdown(report_of(large))
    assert LIMIT - 20_000 < len(text.encode()) <= LIMIT
    assert "The rest of this report is left out, because GitHub shows at most 1 MiB." in text[-400:]
    assert not outside_of_code(text).count("`")
    small = report_markdown(report_of(one))
    exact = len(small.encode())
    assert report_markdown(report_of(one), exact) == small
    assert len(report_markdown(report_of(one), exact - 1).encode()) < exact
    assert report_markdown(report_of(one), 10) == ""


def test_a_summary_is_appended(tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    one = run(tmp_path)
    append_summary(summary, one)
    append_summary(summary, one)
    assert summary.read_text().count("### buildfarm build") == 2
    summary.write_bytes(b"x" * (LIMIT - 100))
    with console.capture() as output:
        append_summary(summary, one)
    assert "is too long for GitHub already" in " ".join(output.get().split())
    assert summary.stat().st_size <= LIMIT


def test_what_a_report_knows_of_a_run(tmp_path: Path) -> None:
    builds = report_of(run(tmp_path)).builds
    assert [build.result for build in builds] == ["failed", "refused", "not finished", "built"]
    failed, refused, _, good = builds
    assert [build.code for build in builds] == ["compile-failed", "compile-failed", None, None]
    assert failed.log
    assert failed.log.lines[-1].endswith(" end")
    assert [(cell.cell, cell.level) for cell in (*failed.cells, *refused.cells, *good.cells)] == [
        (OTHER, "not built"),
        (CELL, "failed"),
        (CELL, "cpu"),
    ]
    assert good.objects == {"reused": 1, "all": 2}
