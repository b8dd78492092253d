"""Compares what `buildfarm verify` says about torchvision and torchaudio with what their import really does.

    python tests/benchmarks/window_vs_import.py --torch 2.9.1 --torch 2.10.0 --store STORE

For each torch, the command installs torch, and then its own torchvision and torchaudio and those of the releases next
to it, one after the other. It imports each, and loads each library of the package with all its symbols. Prints one line
for each pair; exits with 1 if verdict and import differ. Each torch needs 7 GB of disk; one environment exists at a
time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from builder.errors import Exit
from builder.matrix.compat import Compat

PACKAGES = ("torchvision", "torchaudio")

#: Imports a package and loads its libraries; prints the first error. A library of a plug-in may need a library of the
#: system, such as FFmpeg: the system is not what is compared here.
LOAD = """
import ctypes, importlib, pathlib, sys, torch
name = sys.argv[1]
try:
    module = importlib.import_module(name)
except Exception as error:
    sys.exit(f"{type(error).__name__}: {error}".splitlines()[0])
for library in sorted(pathlib.Path(module.__file__).parent.rglob("*.so")):
    try:
        ctypes.CDLL(str(library))
    except OSError as error:
        system = "cannot open shared object file" in str(error) and not str(error).startswith(("libtorch", "libc10"))
        if not system:
            sys.exit(f"{library.name}: {error}".splitlines()[0])
"""


def wheels_for(torch: str) -> Iterator[tuple[str, str]]:
    """Package and version of the wheels to try with a torch: its own, and those of the series before and after."""
    compat = Compat.load()
    newest = {one.series: one for one in compat.torches}
    series = list(newest)
    at = series.index(compat.resolve_torch(torch).series)
    for package in PACKAGES:
        near = [newest[one] for one in series[max(at - 1, 0) : at + 2]]
        near[[one.series for one in near].index(series[at])] = compat.resolve_torch(torch)
        versions = [compat.companions[package].get(one) for one in near]
        yield from ((package, version) for version in dict.fromkeys(versions) if version)


def says_verify(package: str, version: str, torch: str, store: Path) -> tuple[bool, str]:
    """Whether `verify` says that the wheel works with this torch, and the reason."""
    argv = [sys.executable, "-m", "builder", "verify", f"{package}=={version}", "--torch", torch, "--json", "-q"]
    done = subprocess.run([*argv, "--store", str(store)], capture_output=True, text=True, check=False)
    if done.returncode not in (Exit.OK, Exit.FAILED):
        raise SystemExit(done.stderr)
    proofs = [one for one in json.loads(done.stdout)[0]["proofs"] if one["check"] in ("linkage", "window")]
    if any(one["check"] == "linkage" and one["verdict"] == "not run" for one in proofs):
        raise SystemExit(f"{package} {version} with torch {torch} was not linked: {proofs}")
    failed = [one["reason"] for one in proofs if one["verdict"] == "failed"]
    return not failed, (failed or [one["reason"] for one in proofs])[0]


def says_import(package: str, version: str, python: Path) -> tuple[bool, str]:
    """Install the wheel into the environment; whether it can be imported there, and the error."""
    install(python, "--no-deps", f"{package}=={version}")
    done = subprocess.run([python, "-W", "ignore", "-c", LOAD, package], capture_output=True, text=True, check=False)
    error = done.stderr.strip().splitlines()
    return (
        done.returncode == 0,
        f"exit status {done.returncode}: {error[-1] if error else 'crashed'}" if done.returncode else "",
    )


def install(python: Path, *what: str) -> None:
    """Install requirements into an environment."""
    subprocess.run(["uv", "pip", "install", "-q", "--python", str(python), *what], check=True)


def main() -> int:
    """Compare every pair."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--torch", action="append", required=True, help="release of torch on the package index")
    parser.add_argument("--store", type=Path, required=True, help="store with symbol inventories")
    parser.add_argument("--environment", type=Path, help="environment to use and to keep; default: a temporary one")
    options = parser.parse_args()
    differ = 0
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        folder = options.environment or Path(scratch, "environment")
        python = folder / "bin" / "python"
        if not python.exists():
            subprocess.run(["uv", "venv", "-q", "--python", sys.executable, str(folder)], check=True)
        os.environ.setdefault("UV_LINK_MODE", "hardlink")
        for torch in options.torch:
            install(python, f"torch=={torch}", "numpy", "pillow")
            for package, version in wheels_for(torch):
                (links, reason), (works, error) = (
                    says_verify(package, version, torch, options.store),
                    says_import(package, version, python),
                )
                differ += links != works
                words = {True: "works", False: "fails"}
                print(
                    f"{'ok  ' if links == works else 'BAD '}torch {torch}, {package} {version}: verify says"
                    f" {words[links]}, import {words[works]}",
                    flush=True,
                )
                print(f"    verify: {reason[:200]}\n    import: {error[:200] or 'no error'}", flush=True)
    print(f"{differ} differences")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
