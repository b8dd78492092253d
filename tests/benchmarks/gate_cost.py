"""Measures the op gate of one wheel in one cell relative to one import of torch: wall time and CPU time, in one run.

    python tests/benchmarks/gate_cost.py PYTHON extensions/ms_deform_attn

With `--other FOLDER`, a checkout of another version of buildfarm, the gates of both versions run in turns, and the
figures of both and their ratio are printed.

PYTHON is the interpreter of an environment with torch and the extension's wheel. The environment is warm: torch was
imported before the clock starts. The Python that runs this script needs buildfarm.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from builder.gate.pack import pack
from builder.matrix.config import Recipe
from builder.matrix.load import load_recipe
from builder.proofs.cells.op_gate import spec_of
from builder.resources import measure_resources


def _timed(argv: Sequence[str]) -> tuple[float, float, int]:
    """Run a command; return wall seconds, CPU seconds with its children, and the exit status."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    status = subprocess.run(argv, stdout=subprocess.DEVNULL, check=False).returncode
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, status


def _compare(python: str, recipe: Recipe, other: Path, rounds: int) -> int:
    """Print the time of this version's gate, of the other version's gate, and the ratio of their medians."""
    pack_it = "import sys; from pathlib import Path; from builder.gate.outcome import Spec; import json, dataclasses"
    pack_it += "; from builder.gate.pack import pack; known = {one.name for one in dataclasses.fields(Spec)}"
    pack_it += "; spec = Spec(**{k: v for k, v in json.loads(sys.argv[2]).items() if k in known})"
    pack_it += "; pack(Path(sys.argv[1]), spec, Path(sys.argv[3]))"
    figures: dict[Path, list[tuple[float, float, int]]] = {other: [], Path(__file__).parents[2]: []}
    for _ in range(rounds):
        for checkout, measured in figures.items():
            with tempfile.TemporaryDirectory() as scratch:
                words = [f"{scratch}/gate", json.dumps(spec_of(recipe, 0).to_json()), str(recipe.cases)]
                subprocess.run(
                    [sys.executable, "-P", "-c", pack_it, *words], check=True, env={"PYTHONPATH": str(checkout)}
                )
                answer = f"{scratch}/answer.json"
                measured.append(_timed([python, "-I", f"{scratch}/gate", "--answer", answer]))
    wall, cpu = [], []
    for checkout, measured in figures.items():
        wall.append(statistics.median(one[0] for one in measured))
        cpu.append(statistics.median(one[1] for one in measured))
        print(f"{checkout}: {wall[-1]:.1f} s wall, {cpu[-1]:.1f} s CPU (medians of {rounds})")
    print(f"ratio: {wall[1] / wall[0]:.2f} wall, {cpu[1] / cpu[0]:.2f} CPU")
    return max(one[2] for measured in figures.values() for one in measured)


def main() -> int:
    """Print the figures; return the exit status of the gate."""
    parser = argparse.ArgumentParser(description="Measure the op gate relative to one import of torch.")
    parser.add_argument("python", help="interpreter of an environment with torch and the wheel")
    parser.add_argument("recipe", type=Path, help="folder with an extension.yaml")
    parser.add_argument("--other", type=Path, help="a checkout of another version of buildfarm, to compare with")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each version with --other")
    options = parser.parse_args()
    recipe = load_recipe(options.recipe)
    if options.other:
        return _compare(options.python, recipe, options.other.resolve(), options.rounds)
    bare = [options.python, "-I", "-c", "import torch"]
    _timed(bare)
    torch_wall, torch_cpu, _ = _timed(bare)
    with tempfile.TemporaryDirectory() as scratch:
        folder = pack(Path(scratch, "gate"), spec_of(recipe, 0), recipe.cases)
        answer_path = folder / "answer.json"
        wall, cpu, status = _timed([options.python, "-I", str(folder), "--answer", str(answer_path)])
        answer = json.loads(answer_path.read_bytes())
    verdicts = Counter(outcome["verdict"] for outcome in answer["outcomes"])
    print(f"torch {answer['where']['torch']}, Python {answer['where']['python']}, {measure_resources().cores} cores")
    print(f"{recipe.name}: {len(answer['ops'])} ops, " + ", ".join(f"{n} {verdict}" for verdict, n in verdicts.items()))
    print(f"import torch   {torch_wall:6.2f} s wall {torch_cpu:7.2f} s CPU")
    print(f"gate           {wall:6.2f} s wall {cpu:7.2f} s CPU")
    print(f"ratio          {wall / torch_wall:6.1f}        {cpu / torch_cpu:7.1f}")
    return status


if __name__ == "__main__":
    sys.exit(main())
