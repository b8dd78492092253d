"""Processor seconds of each further cell of a classic extension, as a share of those of the first cell.

Run: python -m tests.benchmarks.second_python [--executor local] [--source SOURCE] [--torch V]... [--python V]...
[--archs LIST] [--store DIR]. With the local executor: two torches and two Pythons of a SOURCE that `buildfarm add`
takes. Environments are made first, so that a build compiles, links and repairs; proofs are left out.

With `--executor docker`, [--rounds N]: a second Python of ms_deform_attn. It needs what farm_vs_cibuildwheel needs, and
takes some minutes. The first builds download the packages; then their objects are deleted, so that only compiling is
compared. The cost of the second Python is the time of a run that builds its wheel, minus the time of a run that finds
every wheel built. The first build of each round includes the self-test of the compiler cache, one or two seconds.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path
from statistics import median

from builder.matrix.axes import Cuda, Python, Torch
from builder.store import Store
from builder.wheels.toolchain.environments import Environments, build_requirements
from tests.benchmarks.farm_vs_cibuildwheel import BUILDFARM, Bench, Extension

CLASSIC = Extension("ms_deform_attn", "csrc/cuda/forward.cu", ["2.6"], "12.4", ["3.11", "3.12"])

#: The GPU architectures of a build without `archs`: those of torch 2.6 for CUDA 12.4.
TORCHS_OWN = "5.0, 6.0, 7.0, 7.5, 8.0, 8.6, 9.0"

CUDA = "13.0"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--executor", choices=["local", "docker"], default="local")
    parser.add_argument("--source", default="chamferdist==1.0.3")
    parser.add_argument("--torch", action="append", help="local: a release; default: 2.11.0 and 2.12.0")
    parser.add_argument("--python", action="append", help="local; default: 3.12 and 3.13")
    parser.add_argument("--archs", help="GPU architectures; default: 9.0; with docker those of torch's own wheel")
    parser.add_argument("--store", type=Path, help="local: a store with environments, and without objects and wheels")
    parser.add_argument("--rounds", type=int, default=3, help="docker: rounds, each with an empty compiler cache")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="buildfarm-bench-") as name:
        (in_containers if options.executor == "docker" else on_this_machine)(Path(name), options)


def on_this_machine(folder: Path, options: argparse.Namespace) -> None:
    """The cells one after the other, each by a run of `build` of its own."""
    store = Store(options.store or folder / "store")
    environments = Environments(store, "https://download.pytorch.org/whl/{variant}")
    cells = list(product(options.torch or ["2.11.0", "2.12.0"], options.python or ["3.12", "3.13"]))
    for torch, python in cells:
        wanted = build_requirements(Torch.parse(torch), Cuda.parse(CUDA), [], toolkit=True)
        environments.ensure(Python.parse(python), wanted, index=[], log=store.log("environment"))

    def buildfarm(*words: str) -> float:
        argv = [sys.executable, "-c", BUILDFARM, "packages", "objects", *words]
        argv += ["--matrix", str(folder / "matrix.yaml"), "--store", str(store.root)]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode:
            sys.exit(done.stdout)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    chosen = [word for cell in cells for pair in zip(("--torch", "--python"), cell, strict=True) for word in pair]
    archs = [word for arch in (options.archs or "9.0").split(",") for word in ("--arch", arch.strip())]
    buildfarm("add", options.source, "--cuda", CUDA, *chosen, *archs)
    spent = []
    for torch, python in cells:
        dist = folder / f"dist-{torch}-{python}"
        cell = ["--torch", torch, "--python", python]
        spent.append(buildfarm("build", "--executor", "local", "--dist", str(dist), *cell))
        (build,) = json.loads((dist / "report.json").read_text())["builds"]
        share, steps = spent[-1] / spent[0], json.dumps(build["record"]["objects"])
        print(f"torch {torch}, Python {python}: {spent[-1]:.1f} CPU s, {share:.2f} of the first; {steps}", flush=True)
    print(f"all cells cost {sum(spent) / spent[0]:.2f} times the first")


def in_containers(folder: Path, options: argparse.Namespace) -> None:
    """The second Python, in several rounds."""
    archs = options.archs or TORCHS_OWN
    bench = Bench(folder, [CLASSIC], archs)
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
            print(f"Python {CLASSIC.pythons[0]}: {first:.1f} CPU s, {CLASSIC.pythons[1]} after it: {second:.1f} CPU s")
            print("\n".join(bench.reused()), flush=True)
        sorted_shares = ", ".join(f"{share:.0%}" for share in sorted(shares))
        print(f"the second costs {median(shares):.0%} of the first (median of {sorted_shares}); archs {archs}")
    finally:
        bench.clear()


if __name__ == "__main__":
    main()
