"""Asks a build backend for the name and the version of its wheel before anything is compiled.

The Python of the build runs this file by its path, in the folder of the source. It imports the standard library only,
of Python 3.8 and newer. The argument is JSON with these keys:

    backend, path: `build-backend` and `backend-path` of pyproject.toml.
    settings: the options of the backend.
    name, version: what the wheel must have, or "": anything. The version has no local part.
    keep: the file to write METADATA to, or "".
"""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
import tempfile
from email.parser import HeaderParser
from pathlib import Path

#: The exit status if the wheel would get another name or version.
DIFFERS = 65
#: The line with which the answer begins; the name and the version follow.
ANSWER = "buildfarm: the wheel will be"
_PLAIN_VERSION = re.compile(r"\d+(?:\.\d+)*(?:(?:a|b|rc)\d+)?(?:\.post\d+)?(?:\.dev\d+)?")


def main(text: str) -> int:
    """Print the name and the version; returns DIFFERS if they are not the expected ones.

    A backend without the hook, or one whose hook fails, prints no answer: its compile says more.
    """
    asked = json.loads(text)
    sys.path[:0] = [os.path.abspath(folder) for folder in asked["path"]]  # noqa: PTH100 - as PEP 517 has it
    module, _, attributes = asked["backend"].partition(":")
    backend = importlib.import_module(module)
    for attribute in filter(None, attributes.split(".")):
        backend = getattr(backend, attribute)
    hook = getattr(backend, "prepare_metadata_for_build_wheel", None)
    if hook is None:
        return 0
    with tempfile.TemporaryDirectory() as folder:
        info = hook(folder, asked["settings"])
        text = Path(folder, info, "METADATA").read_text(encoding="utf-8", errors="replace")
    if asked["keep"]:
        Path(asked["keep"]).write_text(text, encoding="utf-8")
    headers = HeaderParser().parsestr(text)
    name, version = headers["Name"] or "", headers["Version"] or ""
    sys.stdout.write(f"{ANSWER} {name} {version}\n")
    sys.stdout.flush()
    canonical = [re.sub(r"[-_.]+", "-", each).lower() for each in (name, asked["name"])]
    if asked["name"] and canonical[0] != canonical[1]:
        return DIFFERS
    versions = (version.partition("+")[0], asked["version"])
    if not all(map(_PLAIN_VERSION.fullmatch, versions)):
        return 0  # not in the normal form: compared after the compile, by a complete reader of versions
    ours, wanted = (re.sub(r"^(\d+(?:\.\d+)*?)(?:\.0)+(?![.\d])", r"\1", each) for each in versions)
    return 0 if ours == wanted else DIFFERS


if __name__ == "__main__":
    sys.path.pop(0)  # the folder of this file, whose modules the source must not find
    sys.exit(main(sys.argv[1]))
