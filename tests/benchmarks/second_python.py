"""Processor seconds of the wheel for a second Python of a classic extension, as a share of the first Python's.

Run: python -m tests.benchmarks.second_python [--archs LIST] [--rounds N]. It needs what farm_vs_cibuildwheel needs, and
takes some minutes. The first builds download the packages; then their objects are deleted, so that only compiling is
compared. The first build of each round includes the self-test of the compiler cache, one or two seconds. The cost of
the second Python is the time of a run that builds its wheel, minus the time of a run that finds every wheel built.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from statistics import median

from tests.benchmarks.farm_vs_cibuildwheel import Bench, Extension

CLASSIC = Extension("ms_deform_attn", "csrc/cuda/forward.cu", ["2.6"], "12.4", ["3.11", "3.12"])

#: The GPU architectures of a build without `archs`: those of torch 2.6 for CUDA 12.4.
TORCHS_OWN = "5.0, 6.0, 7.0, 7.5, 8.0, 8.6, 9.0"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--archs", default=TORCHS_OWN, help="GPU architectures; default: those of torch's own wheel")
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds, each with an empty compiler cache")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="buildfarm-bench-") as name:
        bench = Bench(Path(name), [CLASSIC], options.archs)
        try:
            bench.make_images()
            bench.buildfarm()
            shares = []
            for _ in range(options.rounds):
                bench.reused()
                bench.forget()
                first = bench.buildfarm("--python", CLASSIC.pythons[0]).cpu
                built, found = (bench.buildfarm().cpu for _ in range(2))
                second = built - found
                shares.append(second / first)
                print(
                    f"Python {CLASSIC.pythons[0]}: {first:.1f} CPU s, {CLASSIC.pythons[1]} after it: {second:.1f} CPU s"
                )
                print("\n".join(bench.reused()), flush=True)
            sorted_shares = ", ".join(f"{share:.0%}" for share in sorted(shares))
            print(
                f"the second costs {median(shares):.0%} of the first (median of {sorted_shares}); archs {options.archs}"
            )
        finally:
            bench.clear()


if __name__ == "__main__":
    main()
