"""Wall time, CPU time and peak memory of proving a finished wheel in more cells of one torch, beside an older commit.

Run: python -m tests.benchmarks.more_cells --old COMMIT [--rounds N]. It needs network, git and Pythons 3.10 to 3.13,
and takes some minutes a round. ms_deform_attn is built for Python 3.12; then each round proves the wheel in the cells
of three more Pythons, with the older commit and with this checkout, in changing order. Packages are in uv's cache; the
proofs and the bytecode of the three Pythons are deleted before each run. The proofs of both must be equal
but for times.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from builder.matrix.axes import Python
from builder.wheels.toolchain.pythons import find_python
from builder.wheels.toolchain.uv import find_uv

ROOT = Path(__file__).parents[2]
FIRST, MORE = "3.12", ("3.10", "3.11", "3.13")
TORCH = "torch==2.11.0"
SELECT = ("--ext", "ms_deform_attn", "--torch", "2.11", "--cuda", "13.0", "--arch", "9.0", "--executor", "local")
#: Runs the words after it as a program, adopts what that program leaves, and writes the CPU seconds of all to a file.
METER = """
import os, resource, subprocess, sys
from builder.gate.system.rlimits import become_subreaper
become_subreaper()
status = subprocess.call(sys.argv[2:])
try:
    while True:
        os.wait()
except ChildProcessError:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
open(sys.argv[1], "w").write(str(used.ru_utime + used.ru_stime))
sys.exit(status)
"""
#: What of a proof depends on the run.
TIMES = {"seconds", "at", "where", "stderr", "time", "traceback", "basis"}


@dataclass(frozen=True)
class Cost:
    """Of one run: seconds, seconds, bytes."""

    wall: float
    cpu: float
    memory: int


class Bench:
    """A store with the wheel, proven in the first cell."""

    def __init__(self, folder: Path, old: str) -> None:
        self.folder, self.store = folder, folder / "store"
        self.code = {"old": folder / "old", "new": ROOT}
        git("worktree", "add", "-q", "--detach", str(folder / "old"), old)
        for python in MORE:  # fills uv's cache
            place = folder / f"env{python}"
            if (found := find_python(Python.parse(python))) is None:
                sys.exit(f"this machine has no Python {python}")
            subprocess.run([find_uv(), "venv", "-q", "--python", found.path, place], check=True)
            subprocess.run([find_uv(), "pip", "install", "-q", "--python", place / "bin/python", TORCH], check=True)
            shutil.rmtree(place)
        for name in self.code:  # the first builds the wheel; each makes its bytecode of the first cell
            self.run(name, [FIRST], "--recheck")
        self.kept = set((self.store / "envs").iterdir())
        (self.proofs,) = (self.store / "proofs").iterdir()
        self.first = self.proofs.read_bytes()

    def forget(self) -> None:
        """Delete the bytecode and the proofs that later runs made."""
        for path in {*(self.store / "envs").iterdir()} - self.kept:
            shutil.rmtree(path)
        self.proofs.write_bytes(self.first)

    def run(self, name: str, pythons: Sequence[str], *more: str) -> Cost:
        """Build and prove for these Pythons with this code."""
        said = self.folder / "cpu"
        words = [sys.executable, "-m", "builder", "build", *SELECT, "--matrix", str(ROOT / "matrix.yaml")]
        words += ["--store", str(self.store), "--dist", str(self.folder / "dist"), *more]
        words += [word for python in pythons for word in ("--python", python)]
        environment = {**os.environ, "PYTHONPATH": str(self.code[name])}
        begin, most = time.monotonic(), 0
        with (self.folder / "output").open("w") as output:
            metered = [sys.executable, "-c", METER, str(said), *words]
            process = psutil.Popen(metered, env=environment, cwd=self.code[name], stdout=output, stderr=output)
            while process.poll() is None:
                time.sleep(1)
                most = max(most, pss(process))
        if process.returncode != 0:
            sys.exit((self.folder / "output").read_text())
        return Cost(time.monotonic() - begin, float(said.read_text()), most)

    def round(self, name: str) -> tuple[Cost, Any]:
        """Prove in the cells of the other Pythons; the cost, and the proofs without times."""
        self.forget()
        cost = self.run(name, [FIRST, *MORE])
        return cost, sorted(map(str, map(without_times, json.loads(self.proofs.read_text()))))


def git(*words: str) -> None:
    """Run git in this checkout."""
    subprocess.run(["git", "-C", str(ROOT), *words], check=True)


def pss(process: psutil.Process) -> int:
    """Bytes of memory of a process and its descendants; shared pages count once."""
    total = 0
    for one in process.children(recursive=True):
        with suppress(psutil.Error):
            total += one.memory_full_info().pss
    return total


def without_times(data: Any) -> Any:
    """Plain data without what depends on the run."""
    if isinstance(data, dict):
        return {key: without_times(value) for key, value in data.items() if key not in TIMES}
    return [without_times(one) for one in data] if isinstance(data, list) else data


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", required=True, help="the older commit")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    costs: dict[str, list[Cost]] = {"old": [], "new": []}
    with tempfile.TemporaryDirectory(prefix="buildfarm-bench-") as name:
        bench = Bench(Path(name), options.old)
        try:
            for number in range(options.rounds):
                found = []
                for side in ("old", "new") if number % 2 == 0 else ("new", "old"):
                    cost, proofs = bench.round(side)
                    costs[side].append(cost)
                    found.append(proofs)
                    memory = f"{cost.memory / 2**20:.0f} MiB"
                    print(f"{number + 1} {side}: {cost.wall:.0f} s, {cost.cpu:.1f} s of CPU, {memory}", flush=True)
                different = [pair for pair in zip(*found, strict=True) if pair[0] != pair[1]]
                print(f"  {len(found[0])} proofs, {len(different)} differ", *different[:2], flush=True)
        finally:
            git("worktree", "remove", "--force", str(bench.code["old"]))
    for what in ("wall", "cpu", "memory"):
        old, new = (median(getattr(cost, what) for cost in costs[side]) for side in ("old", "new"))
        print(f"{what}: new / old = {new / old:.2f} (medians)")


if __name__ == "__main__":
    main()
