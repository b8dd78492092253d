"""The atlas (docs/atlas): what its page prints about findings, and its files."""

from __future__ import annotations

from typing import Any

from docs.atlas.entry import GPUS
from docs.atlas.facts import FACTS, Atlas
from docs.atlas.page import Checked, atlas_page, failures_of

TAG = "cp312-cp312-manylinux_2_28_x86_64"


def entry(version: str, **changes: Any) -> dict[str, Any]:
    """What the atlas says about a wheel without a fault."""
    return {
        "wheel": f"ops-{version}-{TAG}.whl",
        "version": version,
        "sha256": "0" * 64,
        "size": 1000,
        "day": "2026-11-23",
        "requires": ["torch>=2.9"],
        "allowed": ["2.9", "2.10"],
        "links": ["2.9", "2.10"],
        "does_not_link": [],
        "tags": ["manylinux_2_28_x86_64"],
        "glibc": [2, 27],
        "libstdcxx": [3, 4, 21],
        "elsewhere": [],
        "libraries": 1,
        "gpus": {arch: [1, 0, 0] for arch in GPUS},
        "sizes": {},
        "failed": [],
        "not_run": [],
        "remarks": [],
        **changes,
    }


TAGS_FAILED = {"check": "tags", "says": "ops/_C.so needs x@GLIBC_2.32, newer than manylinux_2_28_x86_64 guarantees"}
FOUND = Checked(
    title="The tag is too old",
    kind="differs",
    check="tags",
    about=["newer than manylinux"],
    wheels={"ops": ["1.1", "1.0"]},
    says="It needs\n2.32.",
    evidence="$ readelf -V x\n",
)


def test_a_finding_is_printed_for_the_releases_that_still_fail() -> None:
    page = atlas_page(Atlas([], {"ops": [entry("1.1"), entry("1.0", failed=[TAGS_FAILED])]}), [FOUND])
    assert "### The tag is too old\n\nops 1.0.\n\nIt needs 2.32.\n" in page
    assert "`buildfarm verify ops==1.0 --python 3.12`" in page
    assert "$ readelf -V x" in page
    assert "Not compared" not in page
    assert "The tag is too old" not in atlas_page(Atlas([], {"ops": [entry("1.0")]}), [FOUND])


def test_every_finding_is_about_failures_of_the_committed_atlas() -> None:
    atlas = Atlas.load()
    failures = failures_of(atlas)
    for one in Checked.load():
        for project in one.wheels.keys() & atlas.projects.keys():
            for release in one.wheels[project]:
                named = [failure for name, version, failure in failures if (name, version) == (project, release)]
                assert any(one.covers(project, release, failure) for failure in named), f"{one.title}: {project}"
        assert one.kind in ("differs", "design"), one.title
        assert one.evidence.startswith("$ "), one.title


def test_the_committed_atlas_is_large_enough_and_names_no_address() -> None:
    atlas = Atlas.load()
    assert sum(len(entries) == 3 for entries in atlas.projects.values()) >= 20
    assert "://" not in FACTS.read_text(encoding="utf-8")
