"""The bytecode of an environment's packages, so that not every cell compiles torch's own modules again.

Builds and checks cannot write into their environment (`confinement`), so Python cannot keep there what it compiles.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from builder.hashing import digest_of
from builder.process import run
from builder.store import BYTECODE, Store, sync_file_system

#: Imports modules. With a folder as first word, the bytecode of everything imported from there gets the header of
#: PEP 552 with the hash of its source file: such bytecode is valid for every copy of the file, whatever its time is.
_PROGRAM = """
import os
import sys
from contextlib import suppress
from importlib import import_module
from importlib.util import source_hash

folder, *names = sys.argv[1:]
for name in names:
    with suppress(Exception):
        import_module(name)
for module in list(sys.modules.values()) if folder else ():
    spec = getattr(module, "__spec__", None)
    source, bytecode = getattr(spec, "origin", None), getattr(spec, "cached", None)
    if not source or not bytecode or not bytecode.startswith(folder):
        continue
    with suppress(OSError):
        with open(source, "rb") as stream:
            found = source_hash(stream.read())
        with open(bytecode, "r+b") as stream:
            stream.seek(4)
            stream.write((3).to_bytes(4, "little") + found)
sys.stdout.flush()
sys.stderr.flush()
os._exit(0)  # torch 2.2 under Python 3.12 waits at the exit, forever, for processes that its compiler started
"""


def import_once(python: Path, modules: Sequence[str], *, log: Path, owner: str, hashed: Path | None = None) -> None:
    """Import modules of an environment's packages, so that Python keeps their bytecode in the environment.

    The bytecode of sources below `hashed` is made valid for copies of the sources too.
    """
    run([str(python), "-I", "-c", _PROGRAM, str(hashed or ""), *modules], log=log, owner=owner)


def add_bytecode(store: Store, python: Path, site: Path, modules: Sequence[str], *, log: Path, owner: str) -> None:
    """Give a new environment the bytecode of these modules, and of all that they import.

    The first environment with exactly these packages imports the modules; later ones get copies of its bytecode. `site`
    is the environment's site-packages.
    """
    name = f"{BYTECODE}{_key(python, site, modules)}"
    store.use(f"envs/{name}")
    kept = store.root / "envs" / name
    with store.work(name) as folder:
        if kept.is_dir():
            shutil.copytree(kept, site, dirs_exist_ok=True)
            return
        import_once(python, modules, log=log, owner=owner, hashed=site)
        new = folder / "new"
        new.mkdir()
        for path in site.rglob("*.pyc"):
            copy = new / path.relative_to(site)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
        sync_file_system(new)
        new.rename(kept)


def _key(python: Path, site: Path, modules: Sequence[str]) -> str:
    """Names the Python, the modules, and the sources in site-packages with the hashes in the RECORD files."""
    rows = (row for path in sorted(site.glob("*.dist-info/RECORD")) for row in path.read_text("utf-8").splitlines())
    sources = [row for row in rows if ".py," in row and not row.startswith("..")]
    return digest_of([os.path.realpath(python), sources, list(modules)])[:16]
