"""What the second Python of a classic extension costs the farm, as a share of the first: processor seconds.

Run it: python -m tests.benchmarks.second_python [--archs LIST] [--rounds N]. It needs what farm_vs_cibuildwheel needs,
and takes some minutes. Packages are downloaded first, by builds whose objects are then forgotten: building alone is
compared. The first of each round also tries the object cache (objects.sh, `check`): a second or two. The second is what
it adds to a run of the farm: a run that builds it less one that finds everything built.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from statistics import median

from tests.benchmarks.farm_vs_cibuildwheel import Bench, Extension

CLASSIC = Extension("ms_deform_attn", "csrc/cuda/forward.cu", ["2.6"], "12.4", ["3.11", "3.12"])

#: What a build without `archs` takes: the list of torch 2.6 for CUDA 12.4.
TORCHS_OWN = "5.0, 6.0, 7.0, 7.5, 8.0, 8.6, 9.0"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--archs", default=TORCHS_OWN, help="GPU architectures; default: those of torch's own wheel")
    parser.add_argument("--rounds", type=int, default=3, help="how often, each with an empty object cache")
    parser.add_argument("--packages", default="", help="a volume that holds these cells' packages already")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="buildfarm-bench-") as name:
        jobs = os.cpu_count() or 1
        bench = Bench(Path(name), [CLASSIC], asked.archs, jobs=jobs, proofs=False, packages=asked.packages)
        try:
            bench.make_images()
            bench.farm()
            shares = []
            for _ in range(asked.rounds):
                bench.reused()
                bench.forget()
                first = bench.farm("--python", CLASSIC.pythons[0]).cpu
                built, found = (bench.farm().cpu for _ in range(2))
                second = built - found
                shares.append(second / first)
                print(
                    f"Python {CLASSIC.pythons[0]}: {first:.1f} CPU s, {CLASSIC.pythons[1]} after it: {second:.1f} CPU s"
                )
                print("\n".join(bench.reused()), flush=True)
            told = ", ".join(f"{share:.0%}" for share in sorted(shares))
            print(f"the second costs {median(shares):.0%} of the first (median of {told}); archs {asked.archs}")
        finally:
            bench.clear()


if __name__ == "__main__":
    main()
