"""The HTML of the report: complete, valid for assistive technology, and nothing of a log or a wheel becomes markup."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from builder.publish.runs.page import report_page
from builder.publish.runs.view import report_of
from tests.unit.publish.runs.make import CELL, FAILED, GOOD, REFUSED, UNFINISHED, run

VOID = {"meta", "link", "br", "img", "input"}


class Page(HTMLParser):
    """Reads a page; fails for an end tag that does not fit."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []
        self.headings: list[int] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] != "style":
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def all(self, name: str) -> list[str]:
        """The values of an attribute."""
        return [attributes[name] for _, attributes in self.tags if name in attributes]


@pytest.fixture(scope="module")
def html(tmp_path_factory: pytest.TempPathFactory) -> str:
    return report_page(report_of(run(tmp_path_factory.mktemp("run"))))


@pytest.fixture(scope="module")
def page(html: str) -> Page:
    return Page(html)


def test_nothing_of_a_log_or_a_wheel_becomes_markup(html: str, page: Page) -> None:
    assert {tag for tag, _ in page.tags} == {
        "a", "body", "code", "dd", "details", "div", "dl", "dt", "h1", "h2", "h3", "head", "header", "html", "li",
        "link", "main", "meta", "nav", "p", "path", "pre", "rect", "section", "span", "style", "summary", "svg",
        "table", "tbody", "td", "text", "th", "thead", "title", "tr", "ul",
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
    assert ["open" in attributes for attributes in builds] == [True, True, True, False]
    order = [page.text.index(f"{word} {name}") for name, word in
             ((FAILED, "failed"), (REFUSED, "refused"), (UNFINISHED, "not finished"), (GOOD, "built"))]  # fmt: skip
    assert order == sorted(order)


def test_figures_proofs_and_the_log(page: Page) -> None:
    row = f"built {GOOD} 1:30 min 1 of 2 steps 6 passed, 0 failed, 1 not run"
    assert row in page.text
    assert f"{CELL}: CPU 5 passed, 0 failed, 1 not run; 20.0 s" in page.text
    assert "stages resolve 2.0 s, compile 1:08 min" in page.text
    assert "failed values: ns::op (plain): " in page.text
    assert '"shape": [ 1, 2 ]' in page.text
    assert "102 line 102 </pre>" in page.text
    assert "141 \ufffd\ufffd end" in page.text
    assert "2 cells: never built" in page.text


def test_a_run_without_builds_and_without_a_timeline(tmp_path: Path) -> None:
    empty = run(tmp_path, report={"builds": [], "skips": []}, unfinished=(), logs={}, timeline=None, interrupted=False)
    text = Page(report_page(report_of(empty))).text
    for words in ("no builds", "No build ended.", "The record of this run has no timeline."):
        assert words in text
