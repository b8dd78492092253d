"""How long `buildfarm plan` takes for 10,000 cells. Run it: python tests/benchmarks/plan_speed.py.

It writes a matrix of every torch, CUDA, Python and platform known, and as many extensions as make 10,000
pairs of an extension and an existing cell. A bare Python and the plan run alternately, with cached bytecode as after
an installation with pip. It prints the median wall and processor time, the difference, and the most memory.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from builder.matrix.axes import Platform
from builder.matrix.compat import Compat

CELLS = 10_000
RECIPE = """\
name: {name}
version: 1.0
source: {{path: .}}
abi:
  - {{class: stable, torch: ">=2.10"}}
  - {{class: abi3, torch: ">=2.6,<2.10"}}
  - {{class: cpython}}
imports: [{name}]
"""


def write_project(folder: Path) -> int:
    """Write matrix.yaml and its recipes; return the number of combinations of its axes."""
    compat = Compat.load()
    axes = {
        "torch": compat.torches,
        "cuda": compat.cudas,
        "python": compat.pythons,
        "platforms": tuple(Platform),
    }
    real = sum(
        len(facts.pythons[torch]) * len(by_platform)
        for torch in compat.torches
        for facts in [compat.torch(torch)]
        for cuda, by_platform in facts.variants.items()
        if not compat.why_not_cuda(torch, cuda)
    )
    names = [f"extension_{i}" for i in range(-(-CELLS // real))]
    for name in names:
        (folder / name).mkdir()
        (folder / name / "extension.yaml").write_text(RECIPE.format(name=name), encoding="utf-8")
    lines = [f"{axis}: [{', '.join(map(str, values))}]" for axis, values in axes.items()]
    lines.append(f"extensions: [{', '.join(names)}]")
    (folder / "matrix.yaml").write_text("\n".join([*lines, ""]), encoding="utf-8")
    combinations = 1
    for values in axes.values():
        combinations *= len(values)
    return combinations


@dataclass(frozen=True)
class Run:
    """Elapsed seconds, processor seconds, and peak resident bytes."""

    wall: float
    cpu: float
    peak: int


def timed(argv: list[str], folder: Path, out: Path) -> Run:
    """Run a program once; exit if it fails."""
    env = {**os.environ, "PYTHONPYCACHEPREFIX": str(folder / "byte-code")}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    with out.open("wb") as stdout:
        start = time.perf_counter()
        process = subprocess.Popen(argv, cwd=folder, env=env, stdout=stdout)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{' '.join(argv)} ended with {process.returncode}")
    return Run(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=7)
    runs = parser.parse_args().runs
    plan = [sys.executable, "-m", "builder", "plan", "--json"]
    bare = [sys.executable, "-c", "pass"]
    with tempfile.TemporaryDirectory() as name:
        folder, out = Path(name), Path(name) / "plan.json"
        combinations = write_project(folder)
        timed(plan, folder, out)  # once unmeasured: it writes the byte code
        pairs = [(timed(bare, folder, Path(os.devnull)), timed(plan, folder, out)) for _ in range(runs)]
        found = json.loads(out.read_text(encoding="utf-8"))
    served = sum(len(build["serves"]) for build in found["builds"])
    print(f"axes span {combinations} combinations; {len(found['builds'])} builds serve {served} cells,")
    print(f"{len(found['skips'])} are skipped with a reason; {runs} alternating runs each")
    print("                     wall      processor   (medians)")
    bare_wall, bare_cpu = show("python -c pass", [bare for bare, _ in pairs])
    plan_wall, plan_cpu = show("buildfarm plan", [plan for _, plan in pairs])
    print(f"difference        {plan_wall - bare_wall:6.3f} s   {plan_cpu - bare_cpu:6.3f} s")
    print(f"peak memory       {max(plan.peak for _, plan in pairs) / 1e6:6.0f} MB")


def show(name: str, runs: list[Run]) -> tuple[float, float]:
    """Print one line; return the median elapsed and processor seconds."""
    wall, cpu = statistics.median(r.wall for r in runs), statistics.median(r.cpu for r in runs)
    print(f"{name:17} {wall:6.3f} s   {cpu:6.3f} s")
    return wall, cpu


if __name__ == "__main__":
    main()
