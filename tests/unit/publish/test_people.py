"""The pages for people: what they show of real records, and that hostile text stays text."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from builder.matrix.axes import AbiClass, Cuda, Python
from builder.matrix.compat import Compat
from builder.matrix.config import Exclude, Selection
from builder.matrix.plan import make_plan
from builder.publish.gradients import Gradient
from builder.publish.index.entry import Entry, FarmFacts
from builder.publish.index.integrity import check_index
from builder.publish.index.objects import Folder
from builder.publish.index.repository import Repository
from builder.publish.people.people_pages import ProjectPlan, coverage, home_page, project_page, project_plans
from tests.unit.matrix.make import matrix, recipe
from tests.unit.publish.index.make import ready

CELLS = {"torch2.11.0-cu130-cp311": "cpu", "torch2.11.0-cu130-cp312": "gpu", "torch2.12.0-cu132-cp312": "static"}


def entry(version: str, cells: dict[str, str], *, yanked: str | None = None) -> Entry:
    name = f"my_ext-{version}-cp310-abi3-manylinux_2_28_x86_64.whl"
    farm = FarmFacts(("cu130", "cu132"), cells, proofs="files/p", archs=("sm_90",))
    return Entry(name, f"files/ab/{name}", "0", 2048, "2026-11-22T20:30:00.000000Z", "", "0", yanked, farm=farm)


PLAN = project_plans(
    make_plan(
        matrix(
            ["2.9", "2.11", "2.12"],
            ["13.0", "13.2"],
            ["3.10", "3.13"],
            exclude=[
                Exclude("torch 2.12 has one CUDA here", "2.12", Cuda.parse("13.2")),
                Exclude("python 3.13 is excluded", "2.9", None, Python.parse("3.13"), "my_ext"),
            ],
        ),
        [recipe("my_ext", (AbiClass.ABI3, "")), recipe("other")],
        Selection(),
        Compat.load(),
    )
)["my-ext"]


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


def test_coverage_has_the_best_level_of_each_cell() -> None:
    old = entry("1.0+cu13", {"torch2.11.0-cu130-cp311": "gpu"})
    worse, bad = entry("2.0+cu13.a", {"torch2.11.0-cu130-cp312": "none"}), entry("2.0+cu13.b", {}, yanked="slow")
    new, first = coverage([old, worse, entry("2.0+cu13", CELLS), bad])
    assert (str(new.version), str(first.version)) == ("2.0", "1.0")
    assert new.grid.pythons == ("3.11", "3.12")
    assert [(row.torch, row.cuda, tuple(field.state for field in row.fields)) for row in new.grid.rows] == [
        ("2.12.0", "13.2", ("", "static")),
        ("2.11.0", "13.0", ("cpu", "gpu")),
    ]
    assert [wheel.yanked for wheel in new.wheels] == [None, None, "slow"]
    assert new.grid.rows[1].fields[0].proofs == "files/p"
    assert [(one.target, one.path, one.version) for one in new.installs][:2] == [
        ("CUDA 13.2 with torch 2.12.0", "cu132", "2.0+cu13"),
        ("CUDA 13.0 with torch 2.11.0", "cu130", "2.0+cu13.a"),
    ]
    assert not [one for one in new.installs if one.version.endswith("b")]


def test_a_wheel_for_one_torch_is_installed_from_its_path() -> None:
    (version,) = coverage([replace(entry("1.0+cu130.torch2.11", {}), farm=FarmFacts(("cu130",), requires_torch=()))])
    assert [(one.path, one.target) for one in version.installs] == [("cu130/torch2.11", "cu130/torch2.11")]
    wheel = entry("1.0+cu130.torch211", {"torch2.11.0-cu130-cp311": "cpu"})
    assert "INDEX/cu130/torch2.11/</span> my-ext==1.0+cu130.torch211" in project_page("my-ext", [wheel]).decode()


def test_the_newest_stable_version_is_shown_before_pre_releases() -> None:
    shown = coverage([entry(f"{version}+cu13", CELLS) for version in ("1.0", "2.0", "2.1.dev1", "3.0rc1")])
    assert [str(one.version) for one in shown] == ["2.0", "1.0", "3.0rc1", "2.1.dev1"]
    assert [one.version.is_prerelease for one in shown] == [False, False, True, True]
    page = project_page("my-ext", [entry("1.0+cu13", CELLS), entry("2.0rc1+cu13", CELLS)]).decode()
    assert page.index(">Version 1.0</h2>") < page.index(">Version 2.0rc1 (pre-release)</h2>")
    yanked = coverage([entry("1.0+cu13", CELLS), entry("2.0+cu13", CELLS, yanked=""), entry("3.0rc1+cu13", CELLS)])
    assert [str(one.version) for one in yanked] == ["2.0", "1.0", "3.0rc1"]
    only = coverage([entry(f"{version}+cu13", CELLS) for version in ("1.0a1", "1.0rc1")])
    assert [str(one.version) for one in only] == ["1.0rc1", "1.0a1"]


def test_yanked_wheels_prove_nothing() -> None:
    (version,) = coverage([entry("1.0+cu13", CELLS, yanked="")])
    assert version.grid.rows == ()
    assert version.installs == []
    page = project_page("my-ext", [entry("1.0+cu13", CELLS, yanked="")]).decode()
    assert "All wheels of this version are yanked" in page


@pytest.mark.parametrize("local", ["cu130.torch2.11", "cu130.torch211"])
def test_a_plan_adds_missing_cells_and_the_reasons_of_others(local: str) -> None:
    there = entry(f"1.0+{local}", {"torch2.11.0-cu130-cp310": "cpu"})
    (version,) = coverage([there], PLAN)
    # The wheel has the tag cp310-abi3, so it serves the other Pythons too, although nothing was proven there.
    assert [(row.torch, [field.state for field in row.fields]) for row in version.grid.rows] == [
        ("2.12.1", ["missing", "missing"]),
        ("2.11.0", ["cpu", "none"]),
        ("2.9.1", ["missing", "skipped"]),
    ]
    first = list(version.reasons.items())[version.grid.rows[2].fields[1].reason - 1]
    assert first == ("python 3.13 is excluded", [("torch 2.9.1, CUDA 13.0", "3.13")])
    assert "torch 2.11 was never built for CUDA 13.2; it has 12.6, 12.8 and 13.0" in version.reasons


def test_a_yanked_wheel_is_missing() -> None:
    wheel = entry("1.0+cu130.torch2.11", {"torch2.11.0-cu130-cp310": "cpu"}, yanked="")
    (version,) = coverage([wheel], PLAN)
    assert {field.state for row in version.grid.rows for field in row.fields} == {"missing", "skipped"}


def test_the_plan_is_of_one_version() -> None:
    old = entry("0.9+cu130.torch2.11", {"torch2.11.0-cu130-cp310": "cpu"})
    new, before = coverage([old], PLAN)
    assert (str(new.version), new.planned, new.wheels) == ("1.0", True, [])
    assert (str(before.version), before.planned, len(before.grid.rows)) == ("0.9", False, 1)


def test_a_plan_is_kept_as_it_is() -> None:
    assert ProjectPlan.from_json(PLAN.to_json()) == PLAN


def test_pages_show_plans_until_the_matrix_loses_the_project(tmp_path: Path) -> None:
    repository = Repository(Folder(tmp_path / "index"))
    repository.set_plans({"my-ext": PLAN, "other": PLAN})
    home = tmp_path / "index" / "index.html"
    page = tmp_path / "index" / "projects" / "my-ext" / "index.html"
    assert {"my-ext", "2 missing"} <= set(Page(home.read_bytes()).texts)
    assert "missing" in Page(page.read_bytes()).texts
    repository.add(ready(tmp_path, version="1.0+cu130.torch2.11"))
    assert "1 CPU" in Page(home.read_bytes()).texts
    assert check_index(repository).faults == ()
    repository.set_plans({"unrelated": replace(PLAN, projects=("unrelated",))})
    assert {"my-ext", "other", "unrelated"} <= set(Page(home.read_bytes()).texts)
    repository.set_plans({"other": PLAN})
    assert "other" in Page(home.read_bytes()).texts
    assert "missing" not in Page(page.read_bytes()).texts
    repository.set_plans({"my-ext": PLAN})
    assert not (tmp_path / "index" / "projects" / "other").exists()
    assert check_index(repository).faults == ()


def test_check_names_a_damaged_plan_and_a_missing_page(tmp_path: Path) -> None:
    repository = Repository(Folder(tmp_path / "index"))
    repository.set_plans({"my-ext": PLAN, "other": PLAN})
    (tmp_path / "index" / "plans" / "my-ext").write_text("{}")
    (tmp_path / "index" / "projects" / "other" / "index.html").unlink()
    (tmp_path / "index" / "projects" / "other").rmdir()
    assert [fault.partition(";")[0] for fault in check_index(repository).faults] == [
        "plans/my-ext: the plan cannot be read",
        "projects/other/index.html: the page is missing",
    ]
    repository.set_plans({"my-ext": PLAN, "other": PLAN})
    repository.write_all_pages()
    assert check_index(repository).faults == ()


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
