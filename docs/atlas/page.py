"""The page of the atlas: index.md, from facts.json and from what people found out about failures (checked.yaml)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import yaml

from builder.matrix.compat import Compat, and_list
from builder.proofs.claimed_cells import range_text
from docs.atlas.entry import GPUS
from docs.atlas.facts import FACTS, Atlas
from docs.atlas.reading import PYTHON
from docs.scripts.markdown import code, page, table

CHECKED = FACTS.parent / "checked.yaml"
_TEXT = FACTS.parent.parent / "scripts" / "atlas.md"
#: Libraries from elsewhere to name.
_MOST = 4


@dataclass(frozen=True)
class Checked:
    """A failed check that somebody compared with the files."""

    #: Heading of the finding.
    title: str
    #: `differs` if the wheels differ from what they say, `design` if their projects mean it so.
    kind: str
    #: The check that failed.
    check: str
    #: Parts of the sentences of the check that the finding is about.
    about: list[str]
    #: The releases that it is about, by project.
    wheels: dict[str, list[str]]
    #: What was found, in sentences for the page.
    says: str
    #: Commands that show it, and what they print.
    evidence: str

    @classmethod
    def load(cls, path: Path = CHECKED) -> list[Checked]:
        """Read the file."""
        return [cls(**row) for row in yaml.safe_load(path.read_text(encoding="utf-8")) or []]

    def covers(self, project: str, release: str, failure: dict[str, str]) -> bool:
        """Whether the finding is about a failure of a release."""
        return (
            release in self.wheels.get(project, ())
            and failure["check"] == self.check
            and any(part in failure["says"] for part in self.about)
        )


def failures_of(atlas: Atlas) -> list[tuple[str, str, dict[str, str]]]:
    """Project, release and failure of each sentence of a failed check."""
    return [(project, entry["version"], one) for project, entry in _entries(atlas) for one in entry["failed"]]


def atlas_page(atlas: Atlas | None = None, checked: Sequence[Checked] | None = None) -> str:
    """The page. A failed check that was not compared with the file is named, but what it said is not printed."""
    atlas = Atlas.load(FACTS) if atlas is None else atlas
    checked = Checked.load() if checked is None else checked
    parts = {
        "intro": _intro(atlas),
        "differs": _findings(atlas, checked, "differs") or "Nothing was found.",
        "design": _findings(atlas, checked, "design") or "Nothing was found.",
        "open": _open(atlas, checked),
        "system": table(
            ["project", "releases", "METADATA", "links with", "tag", "needs", "from elsewhere"], _rows(atlas, _system)
        ),
        "gpus": table(
            ["project", "releases", *(f"{names} ({arch})" for arch, names in GPUS.items())], _rows(atlas, _gpus)
        ),
        "none": _none(atlas),
    }
    text = _TEXT.read_text(encoding="utf-8")
    for name, part in parts.items():
        text = text.replace(f"<!-- {name} -->\n\n", f"{part}\n\n" if part else "")
    return page("Atlas of published wheels", text)


def _entries(atlas: Atlas) -> Iterator[tuple[str, dict[str, Any]]]:
    for project, entries in sorted(atlas.projects.items()):
        for entry in entries:
            yield project, entry


def _intro(atlas: Atlas) -> str:
    days = sorted({entry["day"] for _, entry in _entries(atlas)})
    when = " to ".join(dict.fromkeys([*days[:1], *days[-1:]])) or "no day"
    count = sum(1 for _ in _entries(atlas))
    return (
        f"This page compares what {count} wheels of {len(atlas.projects)} projects contain with what they say.\n"
        f"They are the newest releases, at most three of each project, for Linux on x86_64 and Python {PYTHON}.\n"
        f"They were downloaded from the package index on {when}.\n"
        "[`buildfarm verify`](../how-to/verify.md) judged each file: nothing was executed, and no GPU was used.\n"
        f"The wheels were linked with the symbols of {len(atlas.inventories)} torch releases."
    )


def _findings(atlas: Atlas, checked: Sequence[Checked], kind: str) -> str:
    """A section for each finding of a kind, for the releases whose check failed in this atlas."""
    parts = []
    for one in checked:
        wheels: dict[str, dict[str, None]] = {}
        for project, release, failure in failures_of(atlas):
            if one.kind == kind and one.covers(project, release, failure):
                wheels.setdefault(project, {})[release] = None
        if wheels:
            named = [f"{project} {and_list(releases)}" for project, releases in wheels.items()]
            project = next(name for name in one.wheels if name in wheels)
            parts += [
                f"### {one.title}",
                f"{'; '.join(named)}.",
                " ".join(one.says.split()),
                f"`buildfarm verify {project}=={next(iter(wheels[project]))} --python {PYTHON}` shows it in the check"
                f" `{one.check}`, and so does:",
                f"```\n{one.evidence.rstrip()}\n```",
            ]
    return "\n\n".join(parts)


def _open(atlas: Atlas, checked: Sequence[Checked]) -> str:
    """The failures that were not yet compared with the files."""
    rows = {
        (project, release, failure["check"])
        for project, release, failure in failures_of(atlas)
        if not any(one.covers(project, release, failure) for one in checked)
    }
    if not rows:
        return ""
    return "\n\n".join([
        "## Not yet compared with the files",
        "These checks failed, and nobody compared the verdict with the file. It may be a false alarm.",
        table(["project", "release", "check"], sorted(rows)),
    ])  # fmt: skip


def _rows(atlas: Atlas, cells: Callable[[dict[str, Any]], list[str]]) -> Iterator[list[str]]:
    """A row for each project and releases in a row with the same cells; none without cells."""
    for project, entries in sorted(atlas.projects.items()):
        for shown, group in groupby(entries, key=cells):
            if shown:
                yield [project, ", ".join(entry["version"] for entry in group), *shown]


def _system(entry: dict[str, Any]) -> list[str]:
    required = ", ".join(code(line) for line in entry["requires"]) or "no torch"
    more = len(entry["elsewhere"]) - _MOST
    names = [code(name) for name in entry["elsewhere"][:_MOST]]
    elsewhere = ", ".join(names) + (f" and {more} more" if more > 0 else "")
    tag = min(map(glibc_of, entry["tags"]), default=())
    return [required, _links(entry), _dotted(tag), _dotted(entry["glibc"]), elsewhere]


def _links(entry: dict[str, Any]) -> str:
    order = list(dict.fromkeys(torch.series for torch in Compat.load().torches))
    if entry["links"]:
        return range_text(order, entry["links"])
    reasons = [one["says"] for one in entry["not_run"] if one["check"] == "linkage"]
    return "no library uses torch" if "no library of the wheel uses torch" in reasons else "not shown"


def glibc_of(platform: str) -> tuple[int, ...]:
    """The glibc of a manylinux tag; empty for `linux`, which promises none."""
    old = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}
    parts = platform.removesuffix("_x86_64").split("_")
    return (int(parts[1]), int(parts[2])) if len(parts) == 3 else old.get(parts[0], ())


def _dotted(numbers: Iterable[int]) -> str:
    return ".".join(map(str, numbers)) or "\u2013"


def _gpus(entry: dict[str, Any]) -> list[str]:
    return [_gpu(*entry["gpus"][arch]) for arch in GPUS] if entry["gpus"] else []


def _gpu(native: int, ptx: int, neither: int) -> str:
    """How many libraries have machine code, PTX, or neither, as a word."""
    if neither:
        return f"{native + ptx} of {native + ptx + neither}" if native + ptx else "none"
    return "PTX" if ptx else "native"


def _none(atlas: Atlas) -> str:
    if not atlas.none:
        return ""
    return (
        "## Projects without a wheel to judge\n\n"
        f"The package index has no wheel of these projects for Python {PYTHON} on Linux with an x86_64 processor:\n"
        f"{and_list(sorted(atlas.none))}."
    )
