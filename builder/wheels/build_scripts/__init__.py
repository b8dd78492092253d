"""Scripts that run before and after a compile, in the container of the build or on this machine.

They and `builder.wheels.sccache.launchers` import the standard library and each other only, because a container gets
these two folders and nothing else of buildfarm. They run under the image's Python for tools, or under buildfarm's own.
`script_command` starts them.
"""

from __future__ import annotations

import shutil
from pathlib import Path, PurePath

#: The folder `builder`.
PACKAGE = Path(__file__).parents[2]
#: Folders of the package that a container gets. They import the standard library and each other only.
FOLDERS = ("wheels/build_scripts", "wheels/sccache/launchers")

#: Python's options for the scripts; `build_scripts/__main__.py` gives the reasons.
_OPTIONS = ("-I", "-S", "-B")


def script_command(python: str, root: PurePath, job: PurePath, command: str) -> list[str]:
    """The arguments that run a script.

    `root` is the folder that holds the package, as `copy_scripts` fills it. `job` is the file that `write_job` wrote.
    """
    return [python, *_OPTIONS, str(root / "builder" / FOLDERS[0]), str(job), command]


def copy_scripts(target: Path) -> None:
    """Copy the scripts into a folder that a container gets, below `builder/` as in the package."""
    for folder in FOLDERS:
        (target / "builder" / folder).mkdir(parents=True, exist_ok=True)
        for path in (PACKAGE / folder).iterdir():
            if path.is_file():
                shutil.copyfile(path, target / "builder" / folder / path.name)
