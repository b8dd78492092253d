"""The bytecode of a build's packages, so that not every build compiles torch's own modules again.

It is kept beside uv's cache, because hard links do not cross mounts, under a name for the exact packages, their index,
and the Python. Python itself compares the time and the size of each source file before it uses bytecode; both are the
cache's.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from builder.wheels.build_scripts.environment import BuildPaths

#: How long bytecode that no build uses is kept, seconds.
_KEPT_SECONDS = 30 * 24 * 3600


def take(paths: BuildPaths) -> None:
    """Link the kept bytecode of these packages into site-packages; raises OSError."""
    if os.geteuid() == 0:  # the build's user could neither link nor replace files of root
        return
    _installed_list(paths).write_text(_installed(paths.site), encoding="utf-8")
    kept = _kept_folder(paths)
    if not kept.is_dir():
        return
    _link_files(kept, paths.site, "")
    with suppress(OSError):
        os.utime(kept)


def keep(paths: BuildPaths) -> None:
    """Keep the bytecode that Python made during the build, if it made any; raises OSError."""
    if os.geteuid() == 0:
        return
    before = _installed_list(paths)
    # Packages that the build itself installed or replaced are not shared: bytecode without its sources would pass for
    # a package.
    if not before.is_file() or not (names := before.read_text(encoding="utf-8")) or _installed(paths.site) != names:
        return
    # Files that `take` linked have a second link.
    if not any(path.stat().st_nlink == 1 for path in _files(paths.site, ".pyc")):
        return
    kept = _kept_folder(paths)
    kept.parent.mkdir(parents=True, exist_ok=True)
    _delete_old(kept.parent)
    new = Path(tempfile.mkdtemp(prefix="new.", dir=kept.parent))
    try:
        new.chmod(0o755)
        _link_files(paths.site, new, ".pyc")
        shutil.rmtree(kept, ignore_errors=True)
        with suppress(OSError):  # a build at the same time was faster
            new.rename(kept)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _installed_list(paths: BuildPaths) -> Path:
    return paths.job_dir / "packages.txt"


def _installed(site: Path) -> str:
    return "".join(f"{name}\n" for name in sorted(path.name for path in site.glob("*.dist-info")))


def _kept_folder(paths: BuildPaths) -> Path:
    indexes = f"{os.environ.get('UV_INDEX', '')} {os.environ.get('UV_DEFAULT_INDEX', '')}"
    key = f"{paths.prefix} {indexes}\n".encode() + paths.requirements.read_bytes()
    return paths.packages / "bytecode" / hashlib.sha256(key).hexdigest()[:32]


def _files(folder: Path, suffix: str) -> Iterator[Path]:
    for parent, _, names in os.walk(folder):
        yield from (Path(parent, name) for name in names if name.endswith(suffix))


def _link_files(source: Path, target: Path, suffix: str) -> None:
    """Hard links of the files in a tree; skips files that exist, or that a build at the same time deletes."""
    for path in _files(source, suffix):
        link = target / path.relative_to(source)
        with suppress(OSError):
            link.parent.mkdir(parents=True, exist_ok=True)
            link.hardlink_to(path)


def _delete_old(folder: Path) -> None:
    for path in folder.iterdir():
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > _KEPT_SECONDS:
                shutil.rmtree(path)
