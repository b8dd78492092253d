"""Tests of builder.commands.folders."""

from pathlib import Path

import pytest

from builder.commands import folders
from builder.errors import UsageError


@pytest.fixture(autouse=True)
def root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder in place of /var/tmp."""
    found = tmp_path / "root"
    found.mkdir()
    monkeypatch.setattr(folders, "ROOT", found)
    return found


def test_a_store_whose_path_has_a_space_is_used_through_a_link(tmp_path: Path, root: Path) -> None:
    """torch writes the path of nvcc, which is in the store, into its ninja file without quotes."""
    place = tmp_path / "my (new) store"
    one, two = folders.open_store(place), folders.open_store(place)
    assert one.root == two.root
    assert one.root.parent == root
    assert " " not in one.root.name
    assert one.root.resolve() == place
    assert folders.open_store(tmp_path / "store").root == tmp_path / "store"


def test_a_link_of_somebody_else_is_not_followed(tmp_path: Path) -> None:
    """Everybody can write to /var/tmp, and the store holds programs."""
    place = tmp_path / "my store"
    link = folders.open_store(place).root
    link.unlink()
    link.symlink_to(tmp_path)
    with pytest.raises(UsageError, match="cannot use this store: File exists"):
        folders.open_store(place)
