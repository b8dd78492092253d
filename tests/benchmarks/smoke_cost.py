"""Measures `buildfarm smoke` of a small wheel against another version of buildfarm, in turns: in a new cell, and again.

    python -m tests.benchmarks.smoke_cost --other FOLDER

FOLDER is a checkout of the other version. Each pair of runs has an empty store, so the first run is the first in its
cell, and the second repeats it; both make a new environment. The packages come from uv's cache, which one run fills
before the clock starts. The wheel is that of `gate_samples`.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.fixtures.gate_env import SAMPLES, build_wheel

_RECIPE = """\
name: sample_correct
version: "1.0"
source: {path: .}
abi: [{class: stable, torch: ">=2.0"}]
cuda: optional
imports: [sample_correct]
"""
_MATRIX = "torch: [2.11]\ncuda: [13.0]\npython: [3.12]\nextensions: [extensions/sample_correct]\n"
_CELL = ("--torch", "2.11", "--cuda", "13.0", "--python", "3.12")


def _smoke(checkout: Path, project: Path, wheel: Path, store: str) -> tuple[float, float]:
    """Run `smoke` of a checkout; return wall seconds and CPU seconds of all its processes."""
    start = f"import sys; sys.path.insert(0, {str(checkout)!r}); from builder.__main__ import main; main()"
    argv = [sys.executable, "-P", "-c", start, "smoke", str(wheel), *_CELL, "--ext", "sample_correct"]
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    ended = subprocess.run([*argv, "--store", store], cwd=project, env=os.environ, capture_output=True, check=False)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if ended.returncode:
        raise SystemExit(f"{checkout}: exit {ended.returncode}\n{ended.stdout.decode()}\n{ended.stderr.decode()}")
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Print the figures of each run, the medians and their ratio."""
    parser = argparse.ArgumentParser(description="Compare a smoke test with that of another version.")
    parser.add_argument("--other", type=Path, required=True, help="a checkout of the other version")
    parser.add_argument("--rounds", type=int, default=3, help="pairs of runs of each version")
    options = parser.parse_args()
    checkouts = {"other": options.other.resolve(), "this": Path(__file__).parents[2]}
    figures: dict[tuple[str, str], list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder)
        extension = project / "extensions" / "sample_correct"
        extension.mkdir(parents=True)
        (extension / "extension.yaml").write_text(_RECIPE)
        (extension / "cases.py").write_bytes((SAMPLES / "correct_cases.py").read_bytes())
        (project / "matrix.yaml").write_text(_MATRIX)
        wheel = build_wheel(project, "sample_correct")
        _smoke(checkouts["this"], project, wheel, str(project / "store"))  # fills uv's cache
        for _ in range(options.rounds):
            for name, checkout in checkouts.items():
                with tempfile.TemporaryDirectory() as store:
                    for kind in ("first", "again"):
                        wall, cpu = _smoke(checkout, project, wheel, store)
                        figures.setdefault((name, kind), []).append((wall, cpu))
                        print(f"{name}, {kind}: {wall:.1f} s wall, {cpu:.1f} s CPU", flush=True)
    medians = {key: [statistics.median(one) for one in zip(*runs, strict=True)] for key, runs in figures.items()}
    for kind in ("first", "again"):
        for index, unit in enumerate(("wall", "CPU")):
            before, now = medians["other", kind][index], medians["this", kind][index]
            print(f"{kind}, {unit}: {before:.1f} s -> {now:.1f} s, {now / before:.2f}x")


if __name__ == "__main__":
    main()
