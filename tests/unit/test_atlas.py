"""The atlas (docs/atlas): its page, its files, and a run that is killed and started again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from builder.matrix.compat import Compat
from docs.atlas.entry import GPUS
from docs.atlas.facts import FACTS, Atlas
from docs.atlas.page import Checked, atlas_page, failures_of, glibc_of

ROOT = Path(__file__).parent.parent.parent
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


def rows_of(page: str, project: str) -> list[str]:
    """The rows of the tables that are about a project."""
    return [line for line in page.splitlines() if line.startswith(f"| {project} |")]


def test_releases_with_the_same_figures_share_a_row() -> None:
    page = atlas_page(Atlas(["a", "b"], {"ops": [entry("1.2"), entry("1.1"), entry("1.0", requires=[])]}), [])
    system, older, gpus = rows_of(page, "ops")
    assert system == "| ops | 1.2, 1.1 | `torch>=2.9` | 2.9 and 2.10 | 2.28 | 2.27 |  |"
    assert older == "| ops | 1.0 | no torch | 2.9 and 2.10 | 2.28 | 2.27 |  |"
    assert gpus == f"| ops | 1.2, 1.1, 1.0 |{' native |' * len(GPUS)}"
    assert "3 wheels of 1 projects" in page
    assert "symbols of 2 torch releases" in page


@pytest.mark.parametrize(
    ("counts", "word"),
    [([2, 0, 0], "native"), ([1, 1, 0], "PTX"), ([0, 2, 0], "PTX"), ([1, 1, 3], "2 of 5"), ([0, 0, 2], "none")],
)
def test_gpu_words(counts: list[int], word: str) -> None:
    page = atlas_page(Atlas([], {"ops": [entry("1.0", gpus=dict.fromkeys(GPUS, counts))]}), [])
    assert rows_of(page, "ops")[1] == f"| ops | 1.0 |{f' {word} |' * len(GPUS)}"


def test_a_wheel_without_gpu_code_is_not_in_the_table_of_gpus() -> None:
    assert len(rows_of(atlas_page(Atlas([], {"ops": [entry("1.0", gpus={})]}), []), "ops")) == 1


def test_a_failure_that_nobody_compared_is_named_without_what_it_said() -> None:
    page = atlas_page(Atlas([], {"ops": [entry("1.0", failed=[TAGS_FAILED])]}), [])
    assert "| ops | 1.0 | tags |" in page
    assert "GLIBC_2.32" not in page


def test_a_finding_is_printed_for_the_releases_that_still_fail() -> None:
    page = atlas_page(Atlas([], {"ops": [entry("1.1"), entry("1.0", failed=[TAGS_FAILED])]}), [FOUND])
    assert "### The tag is too old\n\nops 1.0.\n\nIt needs 2.32.\n" in page
    assert "`buildfarm verify ops==1.0 --python 3.12`" in page
    assert "$ readelf -V x" in page
    assert "Not compared" not in page
    assert "The tag is too old" not in atlas_page(Atlas([], {"ops": [entry("1.0")]}), [FOUND])


def test_a_finding_covers_its_own_sentences_only() -> None:
    other = {"check": "tags", "says": "the file name has the tags a, but WHEEL has b"}
    page = atlas_page(Atlas([], {"ops": [entry("1.0", failed=[TAGS_FAILED, other])]}), [FOUND])
    assert "| ops | 1.0 | tags |" in page
    assert "WHEEL has b" not in page


def test_libraries_from_elsewhere_are_listed() -> None:
    names = ["liba.so", "libb.so", "libc.so.1", "libd.so", "libe.so"]
    page = atlas_page(Atlas([], {"ops": [entry("1.0", elsewhere=names)]}), [])
    assert rows_of(page, "ops")[0].endswith("| `liba.so`, `libb.so`, `libc.so.1`, `libd.so` and 1 more |")


def test_glibc_of_tags() -> None:
    tags = ["manylinux_2_34_x86_64", "manylinux2014_x86_64", "manylinux1_x86_64", "linux_x86_64"]
    assert [glibc_of(tag) for tag in tags] == [(2, 34), (2, 17), (2, 5), ()]


def test_the_gpus_of_the_table_exist() -> None:
    assert {tuple(map(int, arch.split("."))) for arch in GPUS} <= set(Compat.load().gpus)


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


def run_atlas(folder: Path) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "docs.atlas", "--store", str(folder / "store")]
    argv += ["--projects", str(folder / "projects.yaml"), "--facts", str(folder / "facts.json")]
    return subprocess.Popen(argv, cwd=ROOT, stderr=subprocess.PIPE, text=True, env=os.environ)
