"""The pages for people: what they show of real records, and that hostile text stays text."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

from builder.publish.gradients import Gradient
from builder.publish.index.entry import Entry, FarmFacts
from builder.publish.index.objects import Folder
from builder.publish.index.repository import Repository
from builder.publish.people.people_pages import home_page, project_page
from tests.unit.publish.index.make import ready

CELLS = {"torch2.11.0-cu130-cp311": "cpu", "torch2.11.0-cu130-cp312": "gpu", "torch2.12.0-cu132-cp312": "static"}


def entry(version: str, cells: dict[str, str], *, yanked: str | None = None) -> Entry:
    name = f"my_ext-{version}-cp310-abi3-manylinux_2_28_x86_64.whl"
    farm = FarmFacts(("cu130", "cu132"), cells, proofs="files/p", archs=("sm_90",))
    return Entry(name, f"files/ab/{name}", "0", 2048, "2026-11-22T20:30:00.000000Z", "", "0", yanked, farm=farm)


class Page(HTMLParser):
    """Tags that are not closed, links, and texts."""

    VOID = frozenset({"meta", "input", "br", "link"})

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.external: list[str] = []
        self.texts: list[str] = []
        self.feed(data.decode())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name == "href" and value != "data:,":
                self.links.append(value or "")
            if name in {"src", "href"} and "//" in (value or ""):
                self.external.append(value or "")

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append(data.strip())

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_page_has_the_levels_and_the_commands_of_each_version() -> None:
    farm = replace(entry("2.0+cu13", CELLS).farm or FarmFacts(), gpus={"torch2.11.0-cu130-cp312": ("sm_80", "sm_90")})
    wheels = [
        entry("1.0+cu130.torch211", {"torch2.11.0-cu130-cp311": "gpu"}),
        replace(entry("2.0+cu13", CELLS), farm=farm),
        entry("2.1rc1+cu13", CELLS),
        entry("0.9+cu13", CELLS, yanked="slow"),
    ]
    texts = Page(project_page("my-ext", wheels)).texts
    headings = [text for text in texts if text.startswith("Version ")]
    assert headings == ["Version 2.0", "Version 1.0", "Version 0.9", "Version 2.1rc1 (pre-release)"]
    paths = [text for text in texts if re.fullmatch(r"cu[\d/.torch]+", text)]
    assert paths == ["cu132", "cu130", "cu130/torch2.11", "cu132", "cu132", "cu130"]
    levels = [(label, cells) for label, cells in pairwise(texts) if cells.startswith("torch2.1")][:3]
    assert levels == [
        ("GPU", "torch2.11.0-cu130-cp312 (sm_80, sm_90)"),
        ("CPU", "torch2.11.0-cu130-cp311"),
        ("built", "torch2.12.0-cu132-cp312"),
    ]
    assert "All wheels of this version are yanked." in texts


def test_the_pages_are_well_formed_and_need_no_other_host() -> None:
    for data in (project_page("my-ext", [entry("1.0+cu13", CELLS)]), home_page(["my-ext", "other"]), home_page([])):
        page = Page(data)
        assert page.open == []
        assert page.external == []


def test_the_page_says_which_ops_lose_gradients() -> None:
    farm = FarmFacts(("cu130",), {}, gradients={"ns::add": "yes, checked", "ns::sub": str(Gradient.LOST)})
    listed = Entry.from_json(replace(entry("1.0+cu130", {}), farm=farm).to_json())
    page = project_page("ops", [listed]).decode()
    assert "gradients: none: the gradients of the inputs are lost (ns::sub); yes, checked (ns::add)" in page


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
