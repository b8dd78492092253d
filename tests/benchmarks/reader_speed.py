"""Compares the reader of wheels with that of another checkout, in pairs of one run: CPU time, wall time, memory.

    python tests/benchmarks/reader_speed.py OTHER_CHECKOUT WHEEL [--pairs 10]

OTHER_CHECKOUT has an environment of its own in `.venv`. Prints the median of the ratios this/other. Both must find the
same number of libraries. The machine should have nothing else to do.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

_READ = """
import sys
from pathlib import Path
from builder.wheelfile.facts import read_facts
print(len(read_facts(Path(sys.argv[1])).libraries))
"""


class Spent(NamedTuple):
    """What one process spent."""

    cpu_seconds: float
    wall_seconds: float
    peak_kib: float


def read(checkout: Path, wheel: Path) -> tuple[Spent, str]:
    """Read a wheel with the code of a checkout; also the number of libraries."""
    start = time.monotonic()
    process = subprocess.Popen(
        [checkout / ".venv/bin/python", "-c", _READ, wheel], cwd=checkout, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    found = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"the reader of {checkout} failed")
    return Spent(used.ru_utime + used.ru_stime, time.monotonic() - start, used.ru_maxrss), found


def main() -> None:
    """Print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--pairs", type=int, default=10)
    options = parser.parse_args()
    checkouts, wheel = (Path(__file__).parents[2], options.other.absolute()), options.wheel.absolute()
    counts = {read(checkout, wheel)[1] for checkout in checkouts}  # a warm-up
    if len(counts) > 1:
        sys.exit(f"the readers find different numbers of libraries: {counts}")
    pairs = [[read(checkout, wheel)[0] for checkout in checkouts] for _ in range(options.pairs)]
    for name in Spent._fields:
        ratios = sorted(getattr(new, name) / getattr(old, name) for new, old in pairs)
        print(f"{name:12} {median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f}, {len(ratios)} pairs)")


if __name__ == "__main__":
    main()
