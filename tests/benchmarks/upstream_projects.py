"""Builds upstream projects of the package index as a researcher would: one command each, and no edited file.

    python tests/benchmarks/upstream_projects.py FOLDER [NAME…]

Runs `buildfarm build NAME==VERSION` for one cell and one GPU architecture in a folder of its own under FOLDER, which
also holds the store. Prints a row for each project: the result, the seconds, and the wheel or the error with its first
hint. A project in KNOWN cannot be built, for the reason that stands there. The exit code is 1 if another one fails, or
if one of KNOWN ends with a different code.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

CELL = ("--torch", "2.11", "--cuda", "13.0", "--python", "3.12", "--arch", "9.0", "--executor", "local")
PROJECTS = """
torch-scatter==2.1.2 torch-cluster==1.6.3 torch-spline-conv==1.2.2 torchsort==0.1.9 torch-points-kernels==0.7.0
torch-linear-assignment==0.1.0rc0 spatial-correlation-sampler==0.5.0 warp-rnnt==0.7.0 dcnv4==1.0.0 diso==0.1.4
inplace-abn==1.1.0 rotary-emb==0.5 chamferdist==1.0.3 torch-kdtree==1.0 moe-kernels==0.1.0 kaldifeat==1.9
fast-rnnt==1.3 sphericart-torch==1.0.5 vesin-torch==0.6.2
"""
#: Project → the code of the error, and what is true about the source.
KNOWN = {
    "dcnv4": ("compile-failed", "uses x.type(), which torch 2.6 removed from the macros of dispatch"),
    "moe-kernels": ("compile-failed", "uses cub::Sum and cub::Max, which CUDA 13 removed"),
    "torch-points-kernels": ("compile-failed", "lacks #include <memory>; requires numpy<1.20, too old for Python 3.12"),
}


def build(project: str, folder: Path) -> tuple[str, str]:
    """The code of the error, or `built`; and the wheel with what its checks say, or the sentence and its first hint."""
    own = folder / project.partition("==")[0]
    own.mkdir(parents=True, exist_ok=True)
    argv = [sys.executable, "-m", "builder", "build", project, *CELL, "--store", str(folder / "store"), "--json"]
    done = subprocess.run(argv, cwd=own, capture_output=True, text=True, check=False)
    (own / "stderr.txt").write_text(done.stderr)
    data: dict[str, Any] = json.loads(done.stdout)
    problems = data["errors"] if "errors" in data else [each for each in data["builds"] if each["status"] == "failed"]
    for problem in problems:
        return problem["code"], " · ".join([problem["error"], *problem["hints"][:1]])
    (made,) = data["builds"]
    verdicts = [proof["verdict"] for proof in made["proofs"]]
    return "built", f"{made['wheel']}: {verdicts.count('passed')} passed, {verdicts.count('not run')} not run"


def main() -> int:
    """Build each project, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these projects")
    options = parser.parse_args()
    folder = options.folder.resolve()
    wrong = 0
    for project in PROJECTS.split():
        name = project.partition("==")[0]
        if options.names and name not in options.names:
            continue
        start = time.monotonic()
        result, text = build(project, folder)
        wrong += result != KNOWN.get(name, ("built",))[0]
        print(f"| {project} | {result} | {time.monotonic() - start:.0f} s | {text} |", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
