"""Makes the atlas: run `python -m docs.atlas` in the repository, then `python -m docs.generate`.

It reads the newest releases of the projects in projects.yaml, judges each wheel with the code of `buildfarm verify`,
and writes facts.json. After a kill, the next run continues: a wheel that was read is not downloaded again.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from filelock import FileLock

from builder.commands.folders import open_store
from builder.errors import BuildfarmError, MissingToolError, UsageError
from builder.gate.amounts import size_text
from builder.log import print_error, print_line, print_warning
from builder.matrix.compat import Compat
from builder.matrix.config import Selection
from builder.proofs.inventory import Release, Shelf, inventory_of_index, shelf_of
from builder.proofs.verify.judge import Judge
from builder.proofs.verify.torch_window import Linker
from builder.store import Store
from builder.wheelfile.facts import open_wheel
from docs.atlas.entry import entry_of
from docs.atlas.facts import FACTS, Atlas
from docs.atlas.reading import PYTHON, Reader, newest_wheels, size_of

PROJECTS = Path(__file__).parent / "projects.yaml"
#: Releases of each project.
_RELEASES = 3


@dataclass
class _Run:
    """One run."""

    #: What is written after each project.
    atlas: Atlas
    #: Where it is written.
    facts: Path
    #: Judges the wheels.
    judge: Judge
    #: Downloads the wheels.
    reader: Reader
    #: The number of wheels that were judged.
    wheels: int = 0
    #: The number of wheels and projects that could not be read this time.
    failures: int = 0

    def project(self, name: str) -> None:
        """Judge the newest releases of a project."""
        entries = []
        try:
            for wheel in newest_wheels(name, _RELEASES):
                reading = self.reader.reading(wheel)
                with open_wheel(reading.hollow) as hollow:
                    verdict = self.judge.judge(hollow, reading.facts, fault=reading.record)
                linker = Linker(reading.facts, self.judge.shelf, self.judge.select)
                entries.append(entry_of(verdict, reading.day, linker.libraries))
                failed = ", ".join(dict.fromkeys(one["check"] for one in entries[-1]["failed"]))
                print_line(f"{wheel.name}: {f'failed: {failed}' if failed else 'no failure'}")
        except MissingToolError as error:  # the next run tries again; facts.json keeps what it said before
            print_error(error)
            self.failures += 1
            return
        except UsageError as error:
            if entries:
                raise
            self.atlas.projects.pop(name, None)
            self.atlas.none[name] = error.sentence
            print_line(f"{name}: {error.sentence}")
        else:
            self.wheels += len(entries)
            self.atlas.none.pop(name, None)
            self.atlas.projects[name] = entries
        self.atlas.write(self.facts)


def _read_symbols(shelf: Shelf, store: Store) -> None:
    """Read the symbols of the newest release of each series of torch that the store lacks."""
    compat = Compat.load()
    for torch in compat.newest_patches:
        release = Release(torch, compat.torch(torch).default, "x86_64")
        if release not in shelf.releases:
            try:
                shelf.add(release, inventory_of_index(release, store))
            except BuildfarmError as error:  # the index may have none
                print_warning(f"torch {torch}: {error.sentence}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Read and judge the wheels; returns 1 if the index did not send one of them."""
    parser = argparse.ArgumentParser("python -m docs.atlas", description="Judges the newest wheels of known projects.")
    parser.add_argument("project", nargs="*", help="only these projects; default: all of projects.yaml")
    parser.add_argument("--store", type=Path, help="buildfarm's store: symbol inventories, and what is kept of wheels")
    parser.add_argument("--projects", type=Path, default=PROJECTS, metavar="FILE", help="the list of projects")
    parser.add_argument("--facts", type=Path, default=FACTS, metavar="FILE", help="the file to write")
    options = parser.parse_args(arguments)
    names = list(yaml.safe_load(options.projects.read_text(encoding="utf-8"))["projects"])
    begin = time.monotonic()
    try:
        store = open_store(options.store)
        folder = store.root / "atlas"
        folder.mkdir(exist_ok=True)
        shelf = shelf_of(store)
        _read_symbols(shelf, store)
        atlas = Atlas.load(options.facts)
        atlas.inventories = [str(release) for release in shelf.releases]
        for gone in {*atlas.projects, *atlas.none}.difference(names):
            atlas.projects.pop(gone, None)
            atlas.none.pop(gone, None)
        with FileLock(folder / "lock"):
            run = _Run(atlas, options.facts, Judge(shelf, Selection(python=(str(PYTHON),))), Reader(folder))
            for name in options.project or names:
                run.project(name)
    except BuildfarmError as error:
        print_error(error)
        return int(error.exit_code)
    reader, kept = run.reader, size_of(folder)
    print_line(
        f"{run.wheels} wheels judged, of which {reader.read} were downloaded ({size_text(reader.fetched)}); at most"
        f" {size_text(reader.peak)} of disk for one wheel, {size_text(kept)} kept; {time.monotonic() - begin:.0f} s"
    )
    return int(run.failures > 0)


if __name__ == "__main__":
    sys.exit(main())
