"""Digests, and the format numbers that the digest of a build and the basis of a proof contain; none has a hash of code.

Raise a number if a change of the code changes the output for the same inputs. Then wheels are built again, or checks
run again. `tests/unit/formats.py` lists the code behind each number, and a test fails if that code has changed.
"""

import hashlib
import json
from pathlib import Path

#: The bytes of a wheel. Templates of images are not part of it: the name of an image covers them.
BUILD_FORMAT = 6
#: The facts that are read from a wheel file and kept in the store.
FACTS_FORMAT = 4
#: Verdicts of the checks of the wheel file.
STATIC_FORMAT = 10
#: Verdicts of the linkage check.
LINKAGE_FORMAT = 4
#: Verdicts of the import in the environment of a cell.
CELL_FORMAT = 2
#: Verdicts of the op gate.
OPS_FORMAT = 11
#: Verdicts of the checks of `buildfarm verify`: before a wheel is published, and of `record` and `loader` in a build.
VERIFY_FORMAT = 9
#: What client and workers send each other.
PROTOCOL = 17


def sha256_of(path: Path) -> str:
    """sha256 of a file; raises OSError when the file cannot be read."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def digest_of(parts: object) -> str:
    """sha256 of the canonical JSON of plain data: sorted keys, no spaces."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
