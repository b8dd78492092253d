"""Measures `buildfarm smoke` or `buildfarm build` against another version of buildfarm, in turns.

    python -m tests.benchmarks.compare_versions --other FOLDER
    python -m tests.benchmarks.compare_versions --other FOLDER --modules 2
    python -m tests.benchmarks.compare_versions --other FOLDER --build ms_deform_attn

FOLDER is a checkout of the other version. Each pair of runs has an empty store, so the first run is the first in its
cell, and the second repeats it; both make a new environment. The packages come from uv's cache, which one run fills
before the clock starts. The wheel is that of `gate_samples`; with `--modules N` it has N modules, which import nothing,
and no cases. Each round also imports torch once, in an environment with the packages of the cell.

With `--build`, both versions build this extension of the other version's matrix, for one cell and one architecture,
without a compiler cache. The second run finds the wheel in the store.
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
from collections.abc import Sequence
from pathlib import Path

from builder.matrix.axes import Cuda, Python, Torch
from builder.matrix.compat import Compat
from builder.wheels.toolchain.pythons import find_python
from builder.wheels.toolchain.uv import find_uv
from tests.fixtures.gate_env import SAMPLES, build_wheel
from tests.unit.loopback import pure_wheel

_RECIPE = """\
name: {name}
version: "1.0"
source: {{path: .}}
abi: [{{class: stable, torch: ">=2.0"}}]
cuda: optional
imports: [{imports}]
"""
_MATRIX = "torch: [2.11]\ncuda: [13.0]\npython: [3.12]\nextensions: [extensions/{name}]\n"
_CELL = ("--torch", "2.11", "--cuda", "13.0", "--python", "3.12")


Figures = tuple[float, float]


def _timed(argv: Sequence[str], cwd: Path) -> Figures:
    """Run a command; return wall seconds and CPU seconds of all its processes."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    ended = subprocess.run(argv, cwd=cwd, env=os.environ, capture_output=True, check=False)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if ended.returncode:
        raise SystemExit(f"{argv}: exit {ended.returncode}\n{ended.stdout.decode()}\n{ended.stderr.decode()}")
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _run(checkout: Path, words: Sequence[str], project: Path, store: str) -> Figures:
    """Run a command of a checkout."""
    start = f"import sys; sys.path.insert(0, {str(checkout)!r}); from builder.__main__ import main; main()"
    return _timed([sys.executable, "-P", "-c", start, *words, *_CELL, "--store", store], project)


def _build_words(project: Path, matrix: Path, name: str) -> list[str]:
    local = ["--arch", "9.0", "--executor", "local", "--no-compiler-cache", "--dist", str(project / "dist")]
    return ["build", "--ext", name, "--matrix", str(matrix), *local]


def _make_project(project: Path, modules: int) -> Path:
    """Write matrix.yaml and a recipe; return the wheel."""
    name = "small_modules" if modules else "sample_correct"
    names = [f"small_{number}" for number in range(modules)] or [name]
    extension = project / "extensions" / name
    extension.mkdir(parents=True)
    (extension / "extension.yaml").write_text(_RECIPE.format(name=name, imports=", ".join(names)))
    (project / "matrix.yaml").write_text(_MATRIX.format(name=name))
    if modules:
        return pure_wheel(project, name, "1.0", {f"{one}.py": "" for one in names})
    (extension / "cases.py").write_bytes((SAMPLES / "correct_cases.py").read_bytes())
    return build_wheel(project, name)


def _torch_python(project: Path) -> str:
    """Return the Python of an environment with the packages of the cell, which has imported torch once."""
    python = str(project / "env" / "bin" / "python")
    packages = Compat.load().cell_requirements(Torch.parse("2.11.0"), Cuda.parse("13.0"))
    found = find_python(Python(3, 12))
    if found is None:
        raise SystemExit("this machine has no Python 3.12")
    _timed([str(find_uv()), "venv", "--no-project", "--python", str(found.path), "env"], project)
    _timed([str(find_uv()), "pip", "install", "--python", python, *packages], project)
    _timed([python, "-I", "-c", "import torch"], project)
    return python


def main() -> None:
    """Print the figures of each run, the medians and their ratios."""
    parser = argparse.ArgumentParser(description="Compare a command with that of another version.")
    parser.add_argument("--other", type=Path, required=True, help="a checkout of the other version")
    parser.add_argument("--rounds", type=int, default=3, help="pairs of runs of each version")
    parser.add_argument("--modules", type=int, default=0, help="a wheel of so many modules, without cases")
    parser.add_argument("--build", metavar="NAME", help="build this extension")
    options = parser.parse_args()
    checkouts = {"other": options.other.resolve(), "this": Path(__file__).parents[2]}
    figures: dict[tuple[str, str], list[Figures]] = {}

    def note(name: str, kind: str, found: Figures) -> None:
        figures.setdefault((name, kind), []).append(found)
        print(f"{name}, {kind}: {found[0]:.1f} s wall, {found[1]:.1f} s CPU", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder)
        if options.build:
            words = _build_words(project, checkouts["other"] / "matrix.yaml", options.build)
        else:
            wheel = _make_project(project, options.modules)
            words = ["smoke", str(wheel), "--ext", wheel.name.partition("-")[0]]
        python = _torch_python(project)
        _run(checkouts["this"], words, project, str(project / "store"))  # fills uv's cache
        for _ in range(options.rounds):
            note("Python", "import torch", _timed([python, "-I", "-c", "import torch"], project))
            for name, checkout in checkouts.items():
                with tempfile.TemporaryDirectory() as store:
                    for kind in ("first", "again"):
                        note(name, kind, _run(checkout, words, project, store))
    medians = {key: [statistics.median(one) for one in zip(*runs, strict=True)] for key, runs in figures.items()}
    for kind in ("first", "again"):
        for index, unit in enumerate(("wall", "CPU")):
            before, now = medians["other", kind][index], medians["this", kind][index]
            torch = now / medians["Python", "import torch"][index]
            print(f"{kind}, {unit}: {before:.1f} s -> {now:.1f} s, {now / before:.2f}x; {torch:.1f}x of `import torch`")


if __name__ == "__main__":
    main()
