"""Wheels with a real library, and their proofs: what a server checks itself passes."""

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from builder.check import Check
from builder.proof import proofs_json, proofs_path
from tests.conftest import lacking
from tests.unit.loopback import PYTHON, pure_wheel
from tests.unit.publish.index.make import ON_CPU, proofs_of

CELL = f"torch2.11.0-cu130-{PYTHON.tag}"
TAG = f"{PYTHON.tag}-{PYTHON.tag}-manylinux_2_17_x86_64"
ON_GPU = (*ON_CPU, Check.GPU_VALUES)


@cache
def library() -> bytes:
    """A library that needs nothing of torch."""
    if shutil.which("gcc") is None:
        lacking("no gcc on this machine")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "_C.so"
        argv = ["gcc", "-shared", "-fPIC", "-nostdlib", "-x", "c", "-", "-o", str(out)]
        subprocess.run(argv, input=b"int call(void) { return 1; }\n", check=True)
        return out.read_bytes()


def proven_wheel(
    folder: Path,
    name: str = "my_ext",
    version: str = "1.0",
    *,
    checks: Sequence[Check] = ON_CPU,
    files: dict[str, str | bytes] | None = None,
) -> Path:
    """A wheel with one library, and beside it the proofs of these checks in one cell."""
    more = files or {}
    members = {f"{name}/__init__.py": "", f"{name}/_C.so": library(), **more}
    wheel = pure_wheel(folder, name, f"{version}+cu130.torch2.11", members, requires=["torch==2.11.*"], tag=TAG)
    proofs_path(wheel).write_bytes(proofs_json(proofs_of(wheel, checks, cells=[CELL])))
    return wheel
