"""How fast index pages are written, beside dumb-pypi. Run: python -m tests.benchmarks.index_speed [--wheels N].

dumb-pypi, a project of the package index, makes static pages from a list of packages. One run measures both, with the
same names, versions and hashes:

- full: all pages of N wheels from their records; dumb-pypi from its list;
- incremental: one wheel more. buildfarm publishes a real wheel, dumb-pypi gets both lists.

It prints the wall time of each and the ratios. The wheels exist as records only, without files, for both.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import uv

from builder.publish.index.entry import Entry, FarmFacts
from builder.publish.index.objects import Folder
from builder.publish.index.repository import Repository, file_path
from tests.unit.publish.index.make import ready

_UPLOADED = "2026-01-01T00:00:00.000000Z"


def entries(count: int, per_project: int = 50) -> Iterator[Entry]:
    """Entries of wheels that do not exist: 50 for each project, each for one of two CUDA variants."""
    for number in range(count):
        variant = ("cu124", "cu130")[number % 2]
        name = f"project_{number // per_project}-{number % per_project + 1}.0+{variant}-cp312-cp312-linux_x86_64.whl"
        sha256 = hashlib.sha256(name.encode()).hexdigest()
        farm = FarmFacts((variant,), {f"torch2.11.0-{variant}-cp312": "cpu"})
        yield Entry(name, file_path(sha256, name), sha256, 10**6, _UPLOADED, ">=3.10", sha256, farm=farm)


def write_records(root: Path, count: int) -> None:
    """Write the records of such wheels, without pages."""
    for entry in entries(count):
        record = root / "records" / entry.project / f"{entry.filename}.json"
        record.parent.mkdir(parents=True, exist_ok=True)
        record.write_text(json.dumps(entry.to_json()))


def write_list(path: Path, listed: list[Entry]) -> None:
    """Write the list that dumb-pypi reads: one JSON object in each line."""
    lines = [
        json.dumps(
            {
                "filename": entry.filename,
                "hash": f"sha256={entry.sha256}",
                "requires_python": entry.requires_python,
                "core_metadata": f"sha256={entry.metadata_sha256}",
                "upload_timestamp": 1767225600,
            }
        )
        for entry in listed
    ]
    path.write_text("\n".join(lines) + "\n")


def seconds(act: Callable[[], Any]) -> float:
    """Wall time of a call."""
    started = time.perf_counter()
    act()
    return time.perf_counter() - started


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheels", type=int, default=10_000)
    parser.add_argument("--without-dumb-pypi", action="store_true", help="measure buildfarm alone")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="buildfarm-index-"))
    try:
        _measure(folder, args.wheels, beside=not args.without_dumb_pypi)
    finally:
        shutil.rmtree(folder)


def _measure(folder: Path, count: int, *, beside: bool) -> None:
    root = folder / "index"
    write_records(root, count)
    repository = Repository(Folder(root))
    full = seconds(repository.write_all_pages)
    more = ready(folder, "project_0", "9.0+cu130")
    one = seconds(lambda: repository.add(more))
    print(f"{count} wheels of {len(repository.projects())} projects")
    print(f"buildfarm  full {full:7.2f} s   one more wheel {one:6.3f} s")
    if not beside:
        return
    program = _dumb_pypi(folder)
    old, new = folder / "old.json", folder / "new.json"
    listed = list(entries(count))
    write_list(old, listed)
    write_list(new, [*listed, more.entry])
    argv = [str(program), "--packages-url", "../../files/", "--output-dir", str(folder / "dumb")]
    theirs = seconds(lambda: subprocess.run([*argv, "--package-list-json", str(old)], check=True))
    again = [*argv, "--previous-package-list-json", str(old), "--package-list-json", str(new)]
    their_one = seconds(lambda: subprocess.run(again, check=True))
    print(f"dumb-pypi  full {theirs:7.2f} s   one more wheel {their_one:6.3f} s")
    print(f"ratio      full {theirs / full:7.2f}     one more wheel {their_one / one:6.1f}")


def _dumb_pypi(folder: Path) -> Path:
    """Install dumb-pypi into an environment of its own."""
    tool = uv.find_uv_bin()
    subprocess.run([tool, "venv", "-q", "-p", sys.executable, str(folder / "venv")], check=True)
    subprocess.run([tool, "pip", "install", "-q", "-p", str(folder / "venv"), "dumb-pypi"], check=True)
    return folder / "venv" / "bin" / "dumb-pypi"


if __name__ == "__main__":
    main()
