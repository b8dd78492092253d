"""The two folders a user names, the store and `dist/`: checked before anything is built."""

import errno
import os
import re
import tempfile
from contextlib import suppress
from pathlib import Path

from platformdirs import user_cache_path

from builder.errors import Code, UsageError
from builder.formats import digest_of
from builder.images.network import saved_folder
from builder.store import MARK, ROOT, Store
from builder.wheels.build_dir import clear_abandoned

#: torch writes nvcc's path into its ninja file unquoted, and PATH has the store's programs: such a store gets a link.
_UNQUOTED = re.compile(r"[^\w@%+=,./~-]")
#: Where `build` writes wheels by default.
DIST = Path("dist")
#: The .gitignore of a new folder.
_IGNORE_ALL = "*\n"


def open_store(root: Path | None, *, run: bool = True, must_exist: bool = False) -> Store:
    """Open the store at `root`, or the user's default store; raises UsageError when it cannot be used.

    `run`: the command builds or checks wheels. `store prune` then deletes nothing; what killed runs left is deleted.
    `must_exist`: the command only reads what other commands have stored, so a `root` that does not exist is a mistake.
    """
    hint = "name a different folder with `--store DIR` or BUILDFARM_STORE"
    if must_exist and root and not root.expanduser().is_dir():
        raise _no_folder(root.expanduser(), f"--store {root}")
    root = Path(root or os.environ.get("BUILDFARM_STORE") or user_cache_path("buildfarm")).expanduser().absolute()
    if must_exist and root.is_dir() and any(root.iterdir()) and not (root / MARK).is_file():
        raise UsageError(
            f"this folder is no store: it has no {MARK}", Code.PATH_NOT_USABLE, where=str(root), hints=[hint]
        )
    try:
        store = Store(_linked(root) if _UNQUOTED.search(str(root)) else root)
        if run:
            store.hold()
            clear_abandoned(store)
            if saved_folder():
                from builder.images.saved import use_saved  # noqa: PLC0415 - loads slowly

                use_saved(store)
    except OSError as error:
        raise UsageError(
            f"cannot use this store: {error.strerror}", Code.PATH_NOT_USABLE, where=str(root), hints=[hint]
        ) from None
    return store


def _linked(root: Path) -> Path:
    """A link to the store, in ROOT, whose path needs no quotes; raises OSError if it cannot be made."""
    root.mkdir(parents=True, exist_ok=True)
    link = ROOT / f"buildfarm.store.{os.getuid()}.{digest_of(str(root))[:16]}"
    with suppress(FileExistsError):
        link.symlink_to(root)
    if link.lstat().st_uid != os.getuid() or not link.is_symlink() or link.readlink() != root:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(link))  # ROOT is open to everyone
    return link


def read_dist(dist: Path) -> list[Path]:
    """The wheels of a folder `--dist`; raises UsageError if the user gave a folder that does not exist."""
    if dist != DIST and not dist.is_dir():
        raise _no_folder(dist, f"--dist {dist}")
    return sorted(dist.glob("*.whl"))


def _no_folder(path: Path, where: str) -> UsageError:
    if path.exists():
        return UsageError("this is a file, not a folder", Code.PATH_NOT_USABLE, where=where)
    return UsageError("there is no such folder", Code.NO_SUCH_FILE, where=where)


def check_output(folder: Path, option: str) -> None:
    """Write a temporary file to a folder for wheels, or to where it will be made; raises UsageError with the option."""
    try:
        with tempfile.TemporaryFile(dir=next(one for one in (folder, *folder.absolute().parents) if one.exists())):
            pass
    except OSError as error:
        sentence = f"cannot write to this folder: {error.strerror}"
        hint = f"name a different folder with `{option} DIR`"
        raise UsageError(sentence, Code.PATH_NOT_USABLE, where=str(folder), hints=[hint]) from None


def new_output(folder: Path, option: str) -> None:
    """Create a folder for wheels, after `check_output`.

    A new folder gets a .gitignore, as from `uv build`: inside a source folder, it is then no part of the source.
    """
    check_output(folder, option)
    if not folder.is_dir():
        folder.mkdir(parents=True)
        (folder / ".gitignore").write_text(_IGNORE_ALL)
