"""Which folders of buildfarm's own code each digest covers, with all their sub-folders.

A changed file changes every digest that covers its folder. A changed build digest builds wheels again; a changed basis
makes proofs again. `tests/unit/test_code_digest.py` states the expected digests for every file.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parent

#: Code that reads wheel files.
WHEELFILE = ("wheelfile",)
#: Code that can change the bytes of a wheel. Image templates are not part of it: the image's name covers them.
BUILD = ("records", "wheelfile", "wheels")
#: Code that can change a verdict on the wheel file.
STATIC_PROOFS = ("proofs/static", "wheelfile")
#: Code that can change the verdict of the import in a cell's environment.
CELL_PROOFS = ("proofs/cells", "wheels/toolchain")
#: Code that can change the verdict of the linkage check: it reads the wheel file and the cell's torch.
LINKAGE_PROOFS = (*STATIC_PROOFS, *CELL_PROOFS)
#: Code that can change a verdict of the op gate.
OP_PROOFS = (*CELL_PROOFS, "gate")


def files_of(folders: tuple[str, ...], package: Path = PACKAGE) -> list[Path]:
    """Return every file below these folders of the package, sorted, without bytecode."""
    found = {path for folder in folders for path in (package / folder).rglob("*") if path.is_file()}
    return sorted(path for path in found if "__pycache__" not in path.parts)


@cache
def code_digest(folders: tuple[str, ...], package: Path = PACKAGE) -> str:
    """Return the sha256, in hex, over the names and the contents of the files below these folders.

    The result is cached: the package does not change while a process runs.
    """
    digest = hashlib.sha256()
    for path in files_of(folders, package):
        digest.update(path.relative_to(package).as_posix().encode() + b"\0")
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()
