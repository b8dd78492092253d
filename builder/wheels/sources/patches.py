"""Apply a recipe's patches in order with git or patch; a patch that does not fit exactly is an error."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from builder.errors import MissingToolError, UsageError


def apply_patches(patches: Sequence[Path], tree: Path) -> None:
    """Apply each patch to `tree` with `-p1` and without fuzz.

    Raises UsageError with the patch, the file and the line of the first hunk that does not fit, and
    MissingToolError when there are patches and neither git nor patch is on PATH.
    """
    for patch in patches:
        if not patch.is_file():
            raise UsageError("the patch does not exist", where=str(patch))
        # `git apply` applies a patch completely or not at all; patch(1) is for machines without git.
        command, complaint = _git(patch, tree) if shutil.which("git") else _patch(patch, tree)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")} | {
            "LC_ALL": "C",
            # Inside a git repository, `git apply` would silently skip every file, so it must not find one.
            "GIT_CEILING_DIRECTORIES": str(tree.resolve().parent),
        }
        done = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, errors="replace", check=False
        )
        if done.returncode:
            output = (done.stdout + done.stderr).strip() or "no reason printed"
            position = re.search(complaint, output)
            detail = f"{position['file']} at line {position['line']}" if position else output.splitlines()[0]
            raise UsageError(
                f"the patch does not apply: {detail}",
                where=str(patch),
                hints=("make a new patch for exactly the version in the recipe",),
            )


def _git(patch: Path, tree: Path) -> tuple[list[str], str]:  # noqa: ARG001 - same signature as _patch
    git = ["git", "-c", "core.autocrlf=false", "apply", "-p1", "--whitespace=nowarn"]
    return [*git, str(patch.resolve())], r"patch failed: (?P<file>.+):(?P<line>\d+)"


def _patch(patch: Path, tree: Path) -> tuple[list[str], str]:
    if not shutil.which("patch"):
        raise MissingToolError(
            "the recipe has patches, and neither git nor patch is on PATH",
            where=str(patch),
            hints=("install git (or patch)",),
        )
    strict = ["--batch", "--forward", "--fuzz=0", "--no-backup-if-mismatch", "--reject-file=-"]
    return (
        ["patch", "-p1", *strict, "--directory", str(tree), "--input", str(patch.resolve())],
        r"(?s)patching file '?(?P<file>[^\n']+)'?\n"
        r"(?:(?!patching file).)*?Hunk #\d+ (?:FAILED|ignored) at (?P<line>\d+)",
    )
