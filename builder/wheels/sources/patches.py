"""Make patches with git, and apply those of a recipe in order; a patch that does not fit exactly is an error.

Each line of a hunk's context must be in the file: fuzz is refused. The hunk may be at a different line (an offset).
"""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from builder.errors import Code, MissingToolError, UsageError

_GIT_APPLY = ("git", "-c", "core.autocrlf=false", "apply", "-p1", "--verbose", "--whitespace=nowarn")
#: What git prints about a hunk that does not fit.
_COMPLAINT = re.compile(r"patch failed: (?P<file>.+):(?P<line>\d+)")
_OLD_FILE = re.compile(rb"--- (?:[^/\t\n]+/)?(?P<file>[^\t\n\0]{1,255})")


def apply_patches(patches: Sequence[Path], tree: Path) -> None:
    """Apply each patch to `tree` with `-p1` and without fuzz.

    Raises UsageError with the patch, the file and the line of the first hunk that does not fit, and with the line ends
    if only they differ; MissingToolError when there are patches and git is not on PATH.
    """
    for patch in patches:
        if not patch.is_file():
            raise UsageError("the patch does not exist", Code.NO_SUCH_FILE, where=str(patch))
        if not shutil.which("git"):
            sentence = "the recipe has patches, and git is not on PATH"
            raise MissingToolError(sentence, Code.PACKAGE_MISSING, where=str(patch), hints=["install git"])
        text = patch.read_bytes()
        fits, output = _git_apply(text, tree)
        if not fits:
            position = _COMPLAINT.search(output)
            detail = f"{position['file']} at line {position['line']}" if position else output.splitlines()[0]
            hint = "make a new patch for exactly the version in the recipe"
            if ends := _other_line_ends(text, tree):
                detail += f": {ends}"
                hint = (
                    "make the patch from the files of the source as they are: an editor, or `core.autocrlf` of git, may"
                    " have changed the line ends"
                )
            raise UsageError(f"the patch does not apply: {detail}", Code.PATCH_FAILED, where=str(patch), hints=[hint])


def make_patch(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> bytes:
    """The patch that changes the contents of files, by their path in the source, from the first to the second."""
    with TemporaryDirectory() as folder:
        for side, files in (("a", before), ("b", after)):
            for name, content in files.items():
                path = Path(folder, side, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
        argv = ["git", "-c", "core.autocrlf=false", "-c", "core.quotepath=false", "diff", "--no-index", "--no-prefix"]
        argv += ["--no-color", "a", "b"]
        return subprocess.run(argv, cwd=folder, env=_environment(Path(folder)), capture_output=True, check=False).stdout


def _environment(tree: Path) -> dict[str, str]:
    """The variables of git, without the settings of the user."""
    return {name: value for name, value in os.environ.items() if not name.startswith("GIT_")} | {
        "LC_ALL": "C",
        # Inside a git repository, `git apply` would silently skip every file, so it must not find one.
        "GIT_CEILING_DIRECTORIES": str(tree.resolve().parent),
        # The user's own settings may ignore differences of white space.
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
    }


def _git_apply(patch: bytes, tree: Path) -> tuple[bool, str]:
    """Apply the text of a patch; return whether it fits, and what git prints."""
    done = subprocess.run(_GIT_APPLY, input=patch, cwd=tree, env=_environment(tree), capture_output=True, check=False)
    output = (done.stderr + done.stdout).decode(errors="replace").strip()
    return done.returncode == 0, output or "no reason printed"


def _other_line_ends(patch: bytes, tree: Path) -> str:
    """`the patch has CRLF at the end of its lines, and setup.py has LF`, if nothing else differs; or "".

    The files that the patch changes are copied with LF, where the patch with LF must fit.
    """
    differs = ""
    with TemporaryDirectory() as copies:
        for section in re.split(rb"(?m)^(?=--- )", patch):
            found = _OLD_FILE.match(section)
            file = (tree / os.fsdecode(found["file"].rstrip())).resolve() if found else tree
            if not file.is_file() or not file.is_relative_to(tree.resolve()):
                continue
            name, content = file.relative_to(tree.resolve()), file.read_bytes()
            crlf = b"\r\n" in section.partition(b"@@")[2]
            if (b"\r\n" in content) is not crlf and not differs:
                kinds = ("CRLF", "LF") if crlf else ("LF", "CRLF")
                differs = f"the patch has {kinds[0]} at the end of its lines, and {name} has {kinds[1]}"
            (Path(copies) / name).parent.mkdir(parents=True, exist_ok=True)
            (Path(copies) / name).write_bytes(content.replace(b"\r\n", b"\n"))
        return differs if differs and _git_apply(patch.replace(b"\r\n", b"\n"), Path(copies))[0] else ""
