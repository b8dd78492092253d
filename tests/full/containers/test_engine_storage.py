"""Images and volumes of a real container engine: listed with their sizes, deleted, and kept while they are used."""

from __future__ import annotations

import io
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from builder.images.engine import ENGINE_MARK, Engine, engine_marks
from builder.storage.engine_storage import EngineStorage
from builder.storage.item import Item, Kind
from builder.store import Store
from tests.conftest import needs_images

pytestmark = pytest.mark.docker


def docker(*arguments: str, data: bytes = b"") -> str:
    """Run docker; returns what it prints."""
    return subprocess.run(["docker", *arguments], input=data, capture_output=True, check=True).stdout.decode().strip()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[tuple[EngineStorage, str, str]]:
    """A storage that knows one image and one volume, which this test makes: the others belong to other people."""
    needs_images()
    monkeypatch.setattr("builder.images.engine.MARKS_FILE", tmp_path / "marks")
    name = f"buildfarm-prune-{uuid4().hex[:8]}"
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        member = tarfile.TarInfo("file")
        member.size = 1 << 20
        archive.addfile(member, io.BytesIO(bytes(member.size)))
    docker("import", "-", f"{name}/image:0", data=data.getvalue())
    docker("volume", "create", name)
    try:
        yield (
            EngineStorage(Engine(), Store(tmp_path / "store"), tags=f"{name}/", volumes=(name,)),
            f"{name}/image:0",
            name,
        )
    finally:
        subprocess.run(["docker", "rm", "--force", name], capture_output=True, check=False)
        subprocess.run(["docker", "image", "rm", f"{name}/image:0"], capture_output=True, check=False)
        subprocess.run(["docker", "volume", "rm", name], capture_output=True, check=False)


def test_what_a_container_or_a_run_uses_is_kept(made: tuple[EngineStorage, str, str], tmp_path: Path) -> None:
    storage, image, volume = made
    items = {item.kind: item for item in storage.items()}
    assert {kind: item.target for kind, item in items.items()} == {Kind.IMAGES: image, Kind.VOLUMES: volume}
    assert items[Kind.IMAGES].size >= 1 << 20
    assert storage.build_cache() >= 0
    both: list[Item] = list(items.values())

    docker("create", "--name", volume, "--volume", f"{volume}:/v", image, "/none")
    assert [storage.is_unused(item) for item in both] == [False, False]
    assert [storage.delete(item) for item in both] == [False, False]
    docker("rm", volume)

    farm = Engine()
    farm.mark_used(Store(tmp_path / "store"))
    assert [storage.delete(item) for item in both] == [False, False]
    del farm
    with engine_marks().claimed(ENGINE_MARK) as free:
        assert free
    assert [storage.is_unused(item) for item in both] == [True, True]
    assert [storage.delete(item) for item in both] == [True, True]
    assert docker("image", "ls", "--quiet", image) == ""
    assert volume not in docker("volume", "ls", "--quiet").splitlines()
    assert [storage.delete(item) for item in both] == [True, True], "a deleted item is no error"
