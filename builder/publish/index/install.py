"""The commands that install a wheel from an index or from a folder."""

import shlex
from collections.abc import Collection, Sequence
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from builder.matrix.axes import Cell
from builder.matrix.compat import Compat
from builder.matrix.config import TORCH_INDEX
from builder.publish.index.pages import ALL, Entry, path_to_install, paths_of, quoted
from builder.wheels.toolchain.machine import find_python
from builder.wheels.toolchain.uv import uv_command


def install_lines(cells: Collection[Cell], commands: Sequence[str]) -> list[str]:
    """What to run to install wheels that serve these cells: a new environment, then one of the commands.

    The environment has the newest Python of the cells that this machine has, by the path at which buildfarm finds it:
    uv alone finds no Python of pyenv. Without such a Python, uv gets the newest version, and downloads it.
    """
    pythons = sorted({cell.python for cell in cells})
    found = next(filter(None, map(find_python, reversed(pythons))), None)
    versions = ", ".join(map(str, pythons))
    python, uv = shlex.quote(str(found.path if found else pythons[-1])), uv_command()
    return [
        f"To install in Python {versions}, make a new environment (first line) or use an existing one, then pip or uv:",
        f"  {uv} venv --seed --python {python} env && . env/bin/activate",
        *(
            f"  {uv}{command.removeprefix('uv')}" if command.startswith("uv ") else f"  {command}"
            for command in commands
        ),
    ]


def commands_from_index(root: str, entries: Sequence[Entry], wheel: Entry, cells: Collection[Cell]) -> list[str]:
    """The commands of pip and of uv that install a wheel of an index for the newest of these cells, which may be none.

    `root` is the URL of the index, and `entries` are all its wheels of the project. If another one of the same version
    fits this Python and this processor too, the commands name the URL of the wheel: installers differ in which file
    they take.
    """
    cell = max(cells, key=lambda one: (one.torch, one.cuda, one.python), default=None)
    path = path_to_install(wheel, cell.cuda.variant if cell else "")
    asked = SpecifierSet(f"=={wheel.version}", prereleases=True)  # ==1.0 admits 1.0+cu130
    others = [one for one in entries if one != wheel and one.yanked is None and one.version in asked]
    rivals = [one for one in others if cell and path in (ALL, *paths_of(one)) and one.tags_for(cell)]
    url = wheel_url(root, wheel.path, wheel.sha256)
    place, name, version = f"{root}{path}/", wheel.project, str(wheel.version)
    return install_commands(place, name, version, cells, url=url, by_url=bool(rivals))


def install_commands(
    place: str | Path,
    name: str,
    version: str,
    cells: Collection[Cell],
    torch_index: str = TORCH_INDEX,
    url: str = "",
    *,
    by_url: bool = False,
) -> list[str]:
    """The commands of pip and of uv that install this wheel with the newest torch and CUDA of the cells, for a shell.

    `place` is the URL of an index, or a folder with wheels. `torch_index` is the index of torch's CUDA variants, as in
    matrix.yaml. The commands work in an empty environment, and keep a torch that fits. Without cells, they name no
    torch.

    No package of the same name on another index may be installed instead. Public indexes refuse a version with a local
    part. For a version without one, pip would take the file of any index, so it gets `url`, the URL of the wheel.
    uv takes a package from the first index that has it. With `by_url`, uv gets the URL too: the index has another file
    that fits, and installers differ in which one they take.
    """
    requirements, variants = tuple[str, ...](), ""
    if cells:
        compat, (torch, cuda) = Compat.load(), max((cell.torch, cell.cuda) for cell in cells)
        requirements = compat.cell_requirements(torch, cuda)
        variants = "" if compat.is_default_variant(torch, cuda) else torch_index.replace("{variant}", cuda.variant)
    commands = []
    for program, index_option in (("pip", "--extra-index-url"), ("uv pip", "--index")):
        option, where = "--find-links" if isinstance(place, Path) else index_option, str(place)
        if program == "pip" and where.startswith("file:"):
            # Of an index in a folder, pip would warn of each project that the index does not have.
            option, where = "--find-links", f"{where}{canonicalize_name(name)}/index.html"
        if url and (by_url or (program == "pip" and "+" not in version)):
            options, wheel = [], f"{name} @ {url}"
        else:
            options, wheel = [option, where], f"{name}=={version}"
        options += [index_option, variants] if variants else []
        commands.append(shlex.join([*program.split(), "install", *options, wheel, *requirements]))
    return commands


def wheel_url(root: str, path: str, sha256: str) -> str:
    """The URL of a wheel for pip, with its hash. `root` is the URL of the index, `path` that of the wheel in it."""
    return f"{root}{quoted(path)}#sha256={sha256}"
