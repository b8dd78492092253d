"""The pages for people: what they show of real records, and that hostile text stays text."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import pytest

from builder.publish.index.entry import Entry, FarmFacts
from builder.publish.index.objects import Folder
from builder.publish.index.repository import Repository
from builder.publish.people.coverage import coverage
from builder.publish.people.people_pages import home_page, project_page
from tests.unit.publish.index.make import ready

CELLS = {"torch2.11.0-cu130-cp311": "cpu", "torch2.11.0-cu130-cp312": "gpu", "torch2.12.0-cu132-cp312": "static"}


def entry(version: str, cells: dict[str, str], *, yanked: str | None = None) -> Entry:
    name = f"my_ext-{version}-cp310-abi3-manylinux_2_28_x86_64.whl"
    farm = FarmFacts(("cu130", "cu132"), cells, proofs="files/p", archs=("sm_90",))
    return Entry(name, f"files/ab/{name}", "0", 2048, "2026-11-22T20:30:00.000000Z", "", "0", yanked, farm=farm)


class Page(HTMLParser):
    """Tags that are not closed, and links."""

    VOID = frozenset({"meta", "input", "br"})

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.external: list[str] = []
        self.feed(data.decode())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name == "href":
                self.links.append(value or "")
            if name in {"src", "href"} and "//" in (value or ""):
                self.external.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_coverage_has_the_best_level_of_each_cell() -> None:
    old = entry("1.0+cu13", {"torch2.11.0-cu130-cp311": "gpu"})
    worse, bad = entry("2.0+cu13.a", {"torch2.11.0-cu130-cp312": "none"}), entry("2.0+cu13.b", {}, yanked="slow")
    new, first = coverage([old, worse, entry("2.0+cu13", CELLS), bad])
    assert (new.version, first.version) == ("2.0", "1.0")
    assert new.pythons == ("3.11", "3.12")
    assert [(row.torch, row.cuda, row.levels) for row in new.rows] == [
        ("2.12.0", "13.2", ("", "static")),
        ("2.11.0", "13.0", ("cpu", "gpu")),
    ]
    assert [wheel.yanked for wheel in new.wheels] == [None, None, "slow"]
    assert ("cu130", "2.0+cu13") in new.installs
    assert not [version for _, version in new.installs if version.endswith("b")]


def test_yanked_wheels_prove_nothing() -> None:
    (version,) = coverage([entry("1.0+cu13", CELLS, yanked="")])
    assert version.rows == ()
    assert version.installs == ()


def test_the_pages_are_well_formed_and_need_no_other_host() -> None:
    for data in (project_page("my-ext", [entry("1.0+cu13", CELLS)]), home_page(["my-ext", "other"]), home_page([])):
        page = Page(data)
        assert page.open == []
        assert page.external == []


def test_hostile_text_stays_text() -> None:
    data = project_page("my-ext", [entry("1.0+cu13", CELLS, yanked="<script>alert(1)</script>")]).decode()
    assert "<script>alert" not in data
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in data


def test_every_link_of_a_published_wheel_leads_to_a_file(tmp_path: Path) -> None:
    root = tmp_path / "index"
    Repository(Folder(root)).add(ready(tmp_path, version="1.0+cu130"))
    for path in ("index.html", "projects/my-ext/index.html"):
        page = root / path
        for link in Page(page.read_bytes()).links:
            target = page.parent / link.replace("%2B", "+")
            assert (target / "index.html" if target.is_dir() else target).is_file(), link


def test_pages_of_removed_projects_are_removed(tmp_path: Path) -> None:
    repository = Repository(Folder(tmp_path / "index"))
    new = ready(tmp_path, version="1.0+cu130")
    repository.add(new)
    repository.remove(new.wheel.name)
    assert "my-ext" not in (tmp_path / "index" / "index.html").read_text()
    with pytest.raises(FileNotFoundError):
        repository.objects.read("projects/my-ext/index.html")
