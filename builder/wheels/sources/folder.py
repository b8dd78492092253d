"""Which files of a folder are source: all that git does not ignore, without what builds and tools leave behind."""

import os
import posixpath
import re
import shutil
import stat
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

import yaml

from builder.errors import Code, UsageError
from builder.matrix.compat_table import FACTS
from builder.matrix.config import CASES, RECIPE

# Files that builds and tests leave in a source folder. They are not source and differ between machines.
_LEFTOVER_NAMES = frozenset(
    {
        ".git", ".hypothesis", ".mypy_cache", ".nox", ".pytest_cache", ".ruff_cache", ".tox", ".venv",
        "__pycache__", "node_modules",
    }
)  # fmt: skip
_LEFTOVER_SUFFIXES = (".egg-info", ".pyc", ".so")
#: A folder with one of these files is a cache (https://bford.info/cachedir), a Python environment, or buildfarm itself,
#: which `ci --install ./tools/buildfarm` asks for.
_MARKERS = ("CACHEDIR.TAG", "pyvenv.cfg", "conda-meta/history", "builder/gate/run.py")
# Only at the top level: `src/build/` may be a package. The top-level `tests/`, workflows, matrix.yaml, the recipe and
# its op cases are neither in the digest nor in the tree of a build, so changing a test or a summary causes no rebuild.
_LEFT_OUT_AT_TOP = frozenset({"build", "dist", "tests", ".github", "matrix.yaml", FACTS.name, "buildfarm.lock", RECIPE})
#: At the top, what `report`, `relabel` and `smoke --pack` write. A file of these names that git tracks is source.
_WRITTEN_AT_TOP = ("buildfarm-report.html", "relabelled", "*.pyz")
#: The list after `packages =` in setup.py, setup.cfg or pyproject.toml; not the call of a function that finds packages.
_PACKAGES = (
    re.compile(r"\bpackages\s*=\s*(\[[^\]]*\](?:\s*\+\s*\[[^\]]*\])*)"),
    re.compile(r"^packages\s*=((?:\s+[\w.]+,?$)+)", re.MULTILINE),
)
#: A git repository of its own is a folder among the names.
_KINDS = (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK)
_LEFT_OUT_WITH_CASES = _LEFT_OUT_AT_TOP | {CASES, "references"}


def source_files(root: Path) -> list[tuple[str, Path]]:
    """Relative path and file of every source file below a folder, sorted by path.

    In a git work tree, these are the files that git tracks or does not ignore. In any other folder, these are all files
    except those below a folder whose .gitignore is `*`. Both without caches, Python environments, left-over files and
    folders below this one with a recipe, unless its source is a different folder: each belongs to another extension,
    which users edit on its own.
    A pipe, a socket or a device is no source file: a reader of a pipe waits for its writer.
    """
    if not root.is_dir():
        raise UsageError(
            "the source folder does not exist",
            Code.NO_SUCH_FILE,
            where=str(root),
            hints=("correct `source` in the recipe",),
        )
    left_out = _LEFT_OUT_WITH_CASES if (root / CASES).is_file() else _LEFT_OUT_AT_TOP
    text = ""
    for name in ("setup.py", "setup.cfg", "pyproject.toml"):
        with suppress(OSError):
            text += (root / name).read_text(errors="replace") if (root / name).is_file() else ""
    # Those of `build`, `dist` and `tests` that `packages` of the project names are source.
    listed = " ".join(found for form in _PACKAGES for found in form.findall(text))
    left_out -= {name for name in ("build", "dist", "tests") if re.search(rf"(?<![\w.]){name}(?![\w-])", listed)}
    # git lists nothing where it ignores the folder itself.
    names = _git_names(root) or [
        name
        for name in _walk(root, root)
        if not any(fnmatchcase(name.partition("/")[0], pattern) for pattern in _WRITTEN_AT_TOP)
    ]
    marked = [name.removesuffix(f"/{marker}") for name in names for marker in _MARKERS if name.endswith(f"/{marker}")]
    recipes = (name for name in names if name.endswith(f"/{RECIPE}"))
    marked += [posixpath.dirname(name) for name in recipes if _is_inner_recipe(root / name)]
    below = tuple(f"{folder}/" for folder in marked)
    files = []
    for name in sorted(set(names)):
        parts = PurePosixPath(name).parts
        leftover = any(part in _LEFTOVER_NAMES or part.endswith(_LEFTOVER_SUFFIXES) for part in parts)
        mode = (root / name).lstat().st_mode
        if not leftover and parts[0] not in left_out and not name.startswith(below) and stat.S_IFMT(mode) in _KINDS:
            files.append((name, root / name))
    return files


def _is_inner_recipe(file: Path) -> bool:
    """Whether a file is a recipe, which has the required keys of one, and its source is its own folder."""
    from builder.matrix.models import RecipeModel  # noqa: PLC0415 - takes long, and few sources have a recipe

    try:
        if not file.is_file():  # a reader of a pipe waits for its writer
            return False
        keys = yaml.safe_load(file.read_text())
        if any(field.is_required() and name not in keys for name, field in RecipeModel.model_fields.items()):
            return False
        return posixpath.normpath(str(keys["source"].get("path", "."))) == "."
    except (AttributeError, OSError, TypeError, ValueError, yaml.YAMLError):  # a file of something else
        return False


def _git_names(folder: Path) -> list[str] | None:
    """The files that git tracks or does not ignore, also in submodules; None outside of a work tree or without git."""
    if not shutil.which("git"):
        return None
    # `safe.directory`: in a container the work tree may belong to another user. A monitor is a program of the tree.
    settings = ("-c", "safe.directory=*", "-c", "core.fsmonitor=false")
    done = subprocess.run(
        [
            *("git", *settings, "ls-files", "-z", "--cached", "--others", "--exclude-standard"),
            *(f"--exclude=/{pattern}" for pattern in _WRITTEN_AT_TOP),
        ],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    if done.returncode:
        return None
    names = []
    for name in filter(None, os.fsdecode(done.stdout).split("\0")):
        path = folder / name
        if path.is_dir() and not path.is_symlink():  # a submodule or a repository of its own
            inner = (_git_names(path) if (path / ".git").exists() else None) or []
            names += [f"{name.rstrip('/')}/{each}" for each in inner]
        elif os.path.lexists(path):  # git also lists tracked files that were deleted
            names.append(name)
    return names


def _walk(folder: Path, root: Path) -> Iterator[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            path = Path(entry.path)
            if not entry.is_dir(follow_symlinks=False):
                yield path.relative_to(root).as_posix()
            elif entry.name not in _LEFTOVER_NAMES and not _ignores_itself(path):
                yield from _walk(path, root)


def _ignores_itself(folder: Path) -> bool:
    """Whether a folder is a cache, an environment, or output whose tool wrote a .gitignore with `*` into it."""
    if any((folder / marker).is_file() for marker in _MARKERS):
        return True
    ignore = folder / ".gitignore"
    if not ignore.is_file():
        return False
    rules = [line for line in ignore.read_text(errors="replace").split("\n") if line and not line.startswith("#")]
    return rules == ["*"]
