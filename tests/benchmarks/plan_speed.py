"""How long `buildfarm plan` takes for a matrix of 10,000 cells, beside a bare Python. Run it: python tests/benchmarks/plan_speed.py

It writes a matrix of every torch, CUDA and Python known, with as many extensions as it takes to serve 10,000 cells
(an extension in a torch, CUDA, Python and platform), to a temporary folder, then starts both programs in turn and
prints the median wall time of each, the difference, and the most memory one run took.
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


def write_farm(folder: Path) -> int:
    """Write matrix.yaml and its recipes; answers how many combinations its axes span."""
    compat = Compat.load()
    axes = {
        "torch": compat.torches,
        "cuda": compat.cudas,
        "python": compat.pythons,
        "platforms": tuple(Platform),
    }
    real = sum(
        len(facts.pythons[torch]) * len(variant.archs)
        for torch in compat.torches
        for facts in [compat.torch(torch)]
        for cuda, variant in facts.variants.items()
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


def timed(argv: list[str], cwd: Path, out: Path) -> tuple[float, int]:
    """Wall seconds and peak resident bytes of one run; a failed run ends the benchmark."""
    with out.open("wb") as stdout:
        start = time.perf_counter()
        process = subprocess.Popen(argv, cwd=cwd, stdout=stdout)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{' '.join(argv)} ended with {process.returncode}")
    return wall, usage.ru_maxrss * 1024


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=7)
    runs = parser.parse_args().runs
    plan = [sys.executable, "-m", "builder", "plan", "--json"]
    bare = [sys.executable, "-c", "pass"]
    with tempfile.TemporaryDirectory() as name:
        folder, out = Path(name), Path(name) / "plan.json"
        combinations = write_farm(folder)
        timed(plan, folder, out)  # once unmeasured: byte code and disk cache
        pairs = [(timed(bare, folder, Path(os.devnull)), timed(plan, folder, out)) for _ in range(runs)]
        found = json.loads(out.read_text(encoding="utf-8"))
    served = sum(len(build["serves"]) for build in found["builds"])
    bare_wall = statistics.median(wall for (wall, _), _ in pairs)
    plan_wall = statistics.median(wall for _, (wall, _) in pairs)
    peak = max(rss for _, (_, rss) in pairs)
    print(f"axes span {combinations} combinations; {len(found['builds'])} builds serve {served} cells,")
    print(f"{len(found['skips'])} are skipped with a reason; {runs} runs each, in turn")
    print(f"python -c pass    {bare_wall:.3f} s (median)")
    print(f"buildfarm plan    {plan_wall:.3f} s (median)")
    print(f"difference        {plan_wall - bare_wall:.3f} s")
    print(f"peak memory       {peak / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
