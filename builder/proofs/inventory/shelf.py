"""The symbol inventories in the store, one file each, named by the release and the sha256 of the contents."""

from __future__ import annotations

import hashlib
import os
import re
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from builder.errors import UsageError
from builder.hashing import sha256_of
from builder.log import print_warning
from builder.proofs.inventory.inventory import MAX_BYTES, Inventory, Release
from builder.store import Store, write_atomic
from builder.wheelfile import limits
from builder.wheelfile.archive import DAMAGE

_NAME = re.compile(r"(torch[\d.]+-cu\d+-\w+)-([0-9a-f]{64})\.json")


class Shelf:
    """A folder of symbol inventories. Of each release, it has one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @cached_property
    def _files(self) -> dict[Release, Path]:
        found = ((_NAME.fullmatch(path.name), path) for path in sorted(self._folder.glob("torch*.json")))
        return {Release.parse(match[1]): path for match, path in found if match}

    @property
    def releases(self) -> tuple[Release, ...]:
        """The releases with an inventory, oldest first."""
        return tuple(sorted(self._files))

    def path(self, release: Release) -> Path:
        """The file of a release that the shelf has."""
        return self._files[release]

    def read(self, release: Release) -> Inventory:
        """The inventory of a release that the shelf has. Raises UsageError if its file was changed."""
        path = self._files[release]
        data = path.read_bytes()
        if not path.stem.endswith(hashlib.sha256(data).hexdigest()):
            raise UsageError(
                "the symbol inventory differs from the sha256 in its file name",
                where=str(path),
                hints=[f"delete the file, and run `buildfarm inventory add {release.torch}`"],
            )
        with suppress(OSError):
            os.utime(path)  # `store prune` deletes what was not used
        return Inventory.from_bytes(data, str(path))

    def add(self, inventory: Inventory) -> Path:
        """Keep an inventory; it replaces an earlier one of the same release."""
        data = inventory.to_bytes()
        path = self._folder / f"{inventory.release}-{hashlib.sha256(data).hexdigest()}.json"
        if not path.is_file() or sha256_of(path) != path.stem[-64:]:
            write_atomic(path, data)
        if (old := self._files.get(inventory.release)) and old != path:
            old.unlink(missing_ok=True)
        self._files[inventory.release] = path
        return path

    def export(self, target: Path, releases: Sequence[Release]) -> None:
        """Write the inventories of these releases to one zip archive."""
        target.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
            for release in releases:
                archive.writestr(zipfile.ZipInfo(self._files[release].name), self._files[release].read_bytes())

    def take(self, source: Path) -> list[Release]:
        """Add every inventory of an archive that `export` wrote. Raises UsageError for anything else."""
        try:
            limits.check_file_list(source)
            with zipfile.ZipFile(source) as archive:
                infos = archive.infolist()
                named = [match for info in infos if (match := _NAME.fullmatch(info.filename))]
                if not infos or len(named) != len(infos) or len(infos) > limits.MAX_DYNAMIC_ENTRIES:
                    raise UsageError("this is not an archive of `buildfarm inventory export`", where=str(source))
                return [self._taken(archive, info, source) for info in infos]
        except (OSError, *DAMAGE) as error:
            raise UsageError(f"this archive cannot be read: {error}", where=str(source)) from None

    def _taken(self, archive: zipfile.ZipFile, info: zipfile.ZipInfo, source: Path) -> Release:
        with archive.open(info) as stream:
            data = stream.read(MAX_BYTES + 1)
        wanted = _NAME.fullmatch(info.filename)
        if len(data) > MAX_BYTES or not wanted or hashlib.sha256(data).hexdigest() != wanted[2]:
            raise UsageError(f"{info.filename} differs from the sha256 in its name", where=str(source))
        inventory = Inventory.from_bytes(data, f"{source}: {info.filename}")
        if str(inventory.release) != wanted[1]:
            raise UsageError(f"{info.filename} is of {inventory.release}", where=str(source))
        if inventory.release in self._files and self._files[inventory.release].name != info.filename:
            print_warning(f"the inventory of {inventory.release} replaces a different one")
        self.add(inventory)
        return inventory.release


def shelf_of(store: Store) -> Shelf:
    """The symbol inventories of a store."""
    return Shelf(store.root / "inventories")
