"""Measures the time from the appearance of a torch that nobody has listed to a published stable wheel.

    python -m tests.benchmarks.new_torch

An index on loopback gets a made-up torch 2.99.0: the newest torch of the package index under another number. Before,
the project has a published wheel of the stable ABI for its newest real torch. The command runs `buildfarm facts`,
`build` and `publish`, and fails if something was compiled, if a check failed, or if the index does not list the new
cell. It prints the seconds of each command. It needs 15 GB of disk and 20 minutes.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path

from builder.matrix.axes import Python, Torch
from builder.wheels.sources.index import fetch
from builder.wheels.upstream import newest_torch, torch_wheels
from tests.conftest import ROOT
from tests.unit.loopback import serving

NEW = "2.99.0"
EXTENSION = "ms_deform_attn"
MATRIX = """\
torch: ">={torch}"
cuda: [{cuda}]
python: [{python}]
archs: [9.0]
extensions: [extensions/{extension}]
"""


class Quiet(SimpleHTTPRequestHandler):
    """A folder over HTTP."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as http.server has it
        """Print nothing."""


def renamed(wheel: Path, torch: Torch, folder: Path) -> Path:
    """The wheel with another version, in its file name, its METADATA and torch/version.py."""
    path = folder / wheel.name.replace(f"-{torch}", f"-{NEW}")
    info, new_info = f"torch-{torch}.dist-info", f"torch-{NEW}.dist-info"
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(path, "w") as new:
        for member in old.infolist():
            name = member.filename.replace(info, new_info)
            entry = zipfile.ZipInfo(name)
            entry.external_attr = member.external_attr
            with old.open(member) as source:
                if name in {f"{new_info}/METADATA", "torch/version.py"}:
                    text = re.sub(
                        rf"^(Version: |__version__ = '){torch}", rf"\g<1>{NEW}", source.read().decode(), flags=re.M
                    )
                    new.writestr(entry, text)
                elif name == f"{new_info}/RECORD":
                    new.writestr(entry, source.read().decode().replace(info, new_info))
                else:
                    with new.open(entry, "w", force_zip64=True) as target:
                        shutil.copyfileobj(source, target, 1 << 20)
    return path


def page(folder: Path, wheel: Path) -> None:
    """The page of torch on the index."""
    (folder / "simple/torch").mkdir(parents=True)
    with wheel.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    link = f'<!DOCTYPE html><html><body><a href="/{wheel.name}#sha256={digest}">{wheel.name}</a></body></html>'
    (folder / "simple/torch/index.html").write_text(link)


def main() -> int:
    """Run the commands."""
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()
    with tempfile.TemporaryDirectory(prefix="buildfarm-new-torch-") as scratch:
        return measured(Path(scratch))


def measured(folder: Path) -> int:
    """Make the index and the project, and measure."""
    python = Python(3, 12)
    torch, wheels = torch_wheels(f"torch=={newest_torch('')}")
    file = next(one.file for one in wheels if (one.python, one.machine) == (python, os.uname().machine))
    index, project, store = folder / "index", folder / "project", folder / "store"
    index.mkdir()
    wheel = renamed(fetch(file, folder / "real", kind="wheel", where="torch", who="the index lists"), torch, index)
    shutil.copytree(ROOT / "extensions" / EXTENSION, project / "extensions" / EXTENSION)
    with zipfile.ZipFile(wheel) as archive:
        cuda = re.search(r"^cuda\b.*'(.+)'", archive.read("torch/version.py").decode(), re.MULTILINE)
    assert cuda, "torch/version.py names no CUDA"
    axes = {"torch": torch.series, "cuda": cuda[1], "python": python, "extension": EXTENSION}
    (project / "matrix.yaml").write_text(MATRIX.format(**axes))

    def buildfarm(*words: str, **variables: str) -> tuple[str, float]:
        begin = time.monotonic()
        argv = [sys.executable, "-m", "builder", *words]
        variables = {**os.environ, "PYTHONPATH": str(ROOT), "BUILDFARM_STORE": str(store), **variables}
        done = subprocess.run(argv, cwd=project, env=variables, capture_output=True, text=True, check=False)
        print(f"{words[0]}: {time.monotonic() - begin:.0f} s", flush=True)
        if done.returncode:
            sys.exit(done.stdout + done.stderr)
        return done.stdout + done.stderr, time.monotonic() - begin

    publish = ("publish", "--to", "published", "--require", "cpu")
    print(f"with torch {torch}", flush=True)
    buildfarm("build")
    buildfarm(*publish)
    page(index, wheel)
    with serving(partial(Quiet, directory=str(index))) as address:
        print(f"torch {NEW} appears", flush=True)
        own = {"UV_INDEX": f"http://{address}/simple"}
        seconds = [buildfarm("facts", **own)[1]]
        said, took = buildfarm("build", **own)
        seconds += [took, buildfarm(*publish, **own)[1]]
    pages = (project / "published" / "projects").rglob("*.html")
    listed = any("2.99" in one.read_text() for one in pages)
    print(said, f"{sum(seconds):.0f} s from the appearance of torch {NEW} to the index", sep="\n")
    return 0 if "already built, checked" in said and ": compile (" not in said and listed else 1


if __name__ == "__main__":
    sys.exit(main())
