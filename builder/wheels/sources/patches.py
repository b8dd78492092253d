"""Apply a recipe's patches in order with git; a patch that does not fit exactly is an error.

Each line of a hunk's context must be in the file: fuzz is refused. The hunk may be at a different line (an offset).
That is reported, because the patch was made for a different version of the file.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from builder.errors import Code, MissingToolError, UsageError
from builder.log import print_warning

_GIT_APPLY = ("git", "-c", "core.autocrlf=false", "apply", "-p1", "--verbose", "--whitespace=nowarn")
#: What git prints about a hunk that does not fit; about one that fits at a different line, and the file of next hunks.
_COMPLAINT = re.compile(r"patch failed: (?P<file>.+):(?P<line>\d+)")
_OFFSET = re.compile(
    r"(?:Checking patch (?P<file>.+)\.\.\.|Hunk #(?P<hunk>\d+) succeeded at (?P<line>\d+).*\(offset -?\d+ lines?\)\.?)"
)


def apply_patches(patches: Sequence[Path], tree: Path) -> None:
    """Apply each patch to `tree` with `-p1` and without fuzz; warn about hunks that fit at a different line.

    Raises UsageError with the patch, the file and the line of the first hunk that does not fit, and MissingToolError
    when there are patches and git is not on PATH.
    """
    for patch in patches:
        if not patch.is_file():
            raise UsageError("the patch does not exist", Code.NO_SUCH_FILE, where=str(patch))
        if not shutil.which("git"):
            sentence = "the recipe has patches, and git is not on PATH"
            raise MissingToolError(sentence, Code.GIT_MISSING, where=str(patch), hints=["install git"])
        environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")} | {
            "LC_ALL": "C",
            # Inside a git repository, `git apply` would silently skip every file, so it must not find one.
            "GIT_CEILING_DIRECTORIES": str(tree.resolve().parent),
            # The user's own settings may ignore differences of white space.
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
        }
        command = [*_GIT_APPLY, str(patch.resolve())]
        done = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, errors="replace", check=False
        )
        if done.returncode:
            output = (done.stderr + done.stdout).strip() or "no reason printed"
            position = _COMPLAINT.search(output)
            detail = f"{position['file']} at line {position['line']}" if position else output.splitlines()[0]
            hint = "make a new patch for exactly the version in the recipe, with its line ends (CRLF or LF)"
            raise UsageError(f"the patch does not apply: {detail}", Code.PATCH_FAILED, where=str(patch), hints=[hint])
        file, moved = "", dict[str, list[str]]()
        for offset in _OFFSET.finditer(done.stdout + done.stderr):
            file = offset["file"] or file
            if offset["hunk"]:
                moved.setdefault(file, []).append(f"hunk {offset['hunk']} at line {offset['line']}")
        for name, hunks in moved.items():
            places = ", ".join(hunks)
            print_warning(
                f"{patch}: was made for a different version of {name}; it fits, at different lines ({places})"
            )
