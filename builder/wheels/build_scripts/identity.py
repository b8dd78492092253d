"""Asks a build backend for the METADATA of its wheel before anything is compiled.

The Python of the build runs this file by its path. It imports the standard library only, of Python 3.8 and newer. The
argument is JSON with these keys:

    source: the folder with pyproject.toml or setup.py.
    backend, path: `build-backend` and `backend-path` of pyproject.toml.
    settings: the options of the backend.
    keep: the file to write METADATA to.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
from pathlib import Path


def main(text: str) -> None:
    """Write METADATA. A backend without the hook, or one whose hook fails, writes none: its compile says more."""
    asked = json.loads(text)
    os.chdir(asked["source"])
    sys.path[:0] = [os.path.abspath(folder) for folder in asked["path"]]  # noqa: PTH100 - as PEP 517 has it
    module, _, attributes = asked["backend"].partition(":")
    backend = importlib.import_module(module)
    for attribute in filter(None, attributes.split(".")):
        backend = getattr(backend, attribute)
    hook = getattr(backend, "prepare_metadata_for_build_wheel", None)
    if hook is None:
        return
    with tempfile.TemporaryDirectory() as folder:
        info = hook(folder, asked["settings"])
        written = Path(folder, info, "METADATA").read_text(encoding="utf-8", errors="replace")
    Path(asked["keep"]).write_text(written, encoding="utf-8")


if __name__ == "__main__":
    sys.path.pop(0)  # the folder of this file, whose modules the source must not find
    main(sys.argv[1])
