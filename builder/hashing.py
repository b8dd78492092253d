"""sha256 of a file's bytes and of plain data, as lower-case hex."""

import hashlib
import json
from pathlib import Path


def sha256_of(path: Path) -> str:
    """sha256 of a file; raises OSError when the file cannot be read."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def digest_of(parts: object) -> str:
    """sha256 of the canonical JSON of plain data: sorted keys, no spaces."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
