"""Measures `buildfarm inventory add` of one torch release, and `buildfarm verify` of one wheel with every torch series.

    python tests/benchmarks/verify_speed.py 2.9 torchvision-0.24.1-cp312-cp312-manylinux_2_28_x86_64.whl

The release is read from the package index. Its inventory then stands for every torch series, so that the measured
`verify` links the wheel with as many inventories as there are series. Prints seconds and the peak memory of `add`.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from builder.matrix.compat import Compat
from builder.matrix.config import Selection
from builder.proofs.inventory import Inventory, Shelf
from builder.proofs.verify.judge import Judge
from builder.wheelfile.facts import open_wheel, read_facts


def main() -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(description="Measure inventory and verify.")
    parser.add_argument("torch", help="release or series on the package index")
    parser.add_argument("wheel", type=Path, help="a wheel for the same CUDA")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as store:
        began = time.perf_counter()
        argv = [sys.executable, "-m", "builder", "inventory", "add", options.torch, "--store", store]
        subprocess.run(argv, check=True)
        memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        print(f"inventory add {options.torch}: {time.perf_counter() - began:.1f} s, {memory:.0f} MiB of memory")

        shelf = Shelf(Path(store) / "inventories")
        (release,) = shelf.releases
        table = shelf.read(release).table
        compat = Compat.load()
        for series in dict.fromkeys(torch.series for torch in compat.torches):
            shelf.add(Inventory(replace(release, torch=compat.resolve_torch(series)), table))
        wall, cpu = time.perf_counter(), time.process_time()
        with open_wheel(options.wheel) as wheel:
            judge = Judge(shelf, Selection(cuda=(str(release.cuda),)))
            verdict = judge.judge(wheel, read_facts(options.wheel), "a file")
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        print(f"verify, {len(shelf.releases)} releases: {wall:.2f} s, {cpu:.2f} s of CPU, {len(verdict.proofs)} checks")
        argv = [sys.executable, "-m", "builder", "verify", str(options.wheel), "--store", store]
        for _ in range(2):  # the first run writes the byte code of the modules, unless Python is told not to
            before, wall = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime, time.perf_counter()
            subprocess.run(argv, check=False, stdout=subprocess.DEVNULL)
            wall = time.perf_counter() - wall
            cpu = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
        print(f"the command, {len(shelf.releases)} releases: {wall:.2f} s, {cpu:.2f} s of CPU")
    return 0


if __name__ == "__main__":
    sys.exit(main())
