"""How both executors run the scripts of `build_scripts` and `sccache/launchers`, here or in a container."""

from __future__ import annotations

import shutil
from pathlib import Path, PurePath

from builder.code_digest import PACKAGE, code_digest, files_of

#: Folders of the package that a container gets. They import the standard library and each other only.
FOLDERS = ("wheels/build_scripts", "wheels/sccache/launchers")

#: The folder whose files decide how compilers are called.
LAUNCHERS = ("wheels/sccache/launchers",)

#: Python's options for the scripts; `build_scripts/__main__.py` gives the reasons.
_OPTIONS = ("-I", "-S", "-B")


def script_command(python: str, root: PurePath, command: str) -> list[str]:
    """The arguments that run a script; `root` is the folder that holds the package, as `copy_scripts` fills it."""
    return [python, *_OPTIONS, str(root / "builder" / FOLDERS[0]), command]


def copy_scripts(target: Path) -> None:
    """Copy the scripts into a folder that a container gets, below `builder/` as in the package."""
    for path in files_of(FOLDERS, PACKAGE):
        copy = target / "builder" / path.relative_to(PACKAGE)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)


def scripts_digest(folders: tuple[str, ...] = FOLDERS) -> str:
    """A name for the contents of the scripts, 12 hex digits."""
    return code_digest(folders, PACKAGE)[:12]
