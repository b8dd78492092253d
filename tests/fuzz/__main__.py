"""Fuzz the readers: `python -m tests.fuzz --wheels 20000 --sdists 5000 --yaml 5000 --commands 2000 --seed 1`.

Each input has a seed of its own, which is printed with its error: `python -m tests.fuzz --only wheels 1:417`. An input
fails if it raises an error that is not one of ours, takes more than 5 s of CPU, needs more than 1 GB of memory, or
writes outside of its folder. Prints a table and exits 1 if an input failed.
"""

from __future__ import annotations

import argparse
import sys

from tests.fuzz.run import TARGETS_BY_NAME, fuzz, run_one


def main() -> int:
    """Run the chosen targets; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    for name in TARGETS_BY_NAME:
        parser.add_argument(f"--{name}", type=int, default=0, metavar="COUNT")
    parser.add_argument("--seed", type=int, action="append", help="repeatable; default 1")
    parser.add_argument("--only", nargs=2, metavar=("TARGET", "SEED:NUMBER"), help="repeat one input")
    options = parser.parse_args()
    if options.only:
        run_one(*options.only)
        return 0
    failed = 0
    for seed in options.seed or [1]:
        for name in TARGETS_BY_NAME:
            if count := getattr(options, name):
                result = fuzz(name, seed, count)
                print(result.table(), flush=True)
                failed += len(result.faults)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
