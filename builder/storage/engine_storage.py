"""Images and volumes that buildfarm made in the container engine, and the engine's build cache."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from http.client import CONFLICT
from typing import Any

from docker.errors import APIError, NotFound

from builder.images.engine import ENGINE_MARK, Engine, engine_marks
from builder.images.engine_errors import translate_sdk_errors
from builder.storage.item import Item, Kind
from builder.store import Store
from builder.wheels.cibuildwheel.config import OBJECTS_VOLUME, PACKAGES_VOLUME

#: Start of the tags of images that buildfarm builds (`image_build.image_name`).
TAGS = "buildfarm/"
#: Volumes; each extension has more of them, whose names go on after a dot. The last two are of earlier versions.
VOLUMES = (PACKAGES_VOLUME, OBJECTS_VOLUME, "buildfarm-uv", "buildfarm-sccache-root")

#: The engine measures its volumes for each answer, which takes long with many files. Seconds.
TIMEOUT = 300


class EngineStorage:
    """What buildfarm keeps in a container engine. All stores and users of the engine share it."""

    def __init__(self, engine: Engine, store: Store, *, tags: str = TAGS, volumes: tuple[str, ...] = VOLUMES) -> None:
        """`store` knows when images were used last. `tags` and `volumes` say what belongs to buildfarm."""
        self._engine = engine
        self._store = store
        self._tags = tags
        self._volumes = volumes
        self._usage: dict[str, Any] = {}

    def items(self) -> list[Item]:
        """The images and volumes; raises MissingToolError when the engine does not answer."""
        usage = self._read()
        found = []
        for image in usage["Images"] or ():
            for tag in image.get("RepoTags") or ():
                if tag.startswith(self._tags):
                    shared = max(int(image.get("SharedSize", 0)), 0)
                    size = max(int(image["Size"]) - shared, 0)
                    made = datetime.fromtimestamp(int(image["Created"]), UTC)
                    used = max(made, self._store.last_use(f"used/image-{tag.rpartition(':')[2]}"))
                    found.append(Item(Kind.IMAGES, tag, tag, size, used, shared, ENGINE_MARK))
        for volume in usage["Volumes"] or ():
            if (name := volume["Name"]).partition(".")[0] in self._volumes:
                size = max(int((volume.get("UsageData") or {}).get("Size", 0)), 0)
                made = datetime.fromisoformat(volume["CreatedAt"]).astimezone(UTC)
                used = max(made, self._store.last_use("used/engine"))
                found.append(Item(Kind.VOLUMES, name, name, size, used, 0, ENGINE_MARK))
        return found

    def build_cache(self) -> int:
        """Bytes of the engine's build cache, which all projects on this engine share."""
        return sum(int(record["Size"]) for record in self._read().get("BuildCache") or () if not record.get("Shared"))

    def is_unused(self, item: Item) -> bool:
        """Whether no running buildfarm and no container uses an item."""
        with engine_marks().claimed(ENGINE_MARK) as free:
            return free and not self._containers(item)

    def delete(self, item: Item) -> bool:
        """Delete an item; returns False if a running buildfarm or a container uses it."""
        with engine_marks().claimed(ENGINE_MARK) as free:
            if not free:
                return False
            with translate_sdk_errors(), self._engine.client(TIMEOUT) as client:
                try:
                    with suppress(NotFound):
                        if item.kind is Kind.IMAGES:
                            client.images.remove(item.target)
                        else:
                            client.volumes.get(item.target).remove()
                except APIError as error:
                    if error.status_code == CONFLICT:  # a container uses it
                        return False
                    raise
            return True

    def _containers(self, item: Item) -> bool:
        key = "ancestor" if item.kind is Kind.IMAGES else "volume"
        with translate_sdk_errors(), self._engine.client(TIMEOUT) as client:
            return bool(client.containers.list(all=True, filters={key: item.target}, ignore_removed=True))

    def _read(self) -> dict[str, Any]:
        if not self._usage:
            with translate_sdk_errors(), self._engine.client(TIMEOUT) as client:
                self._usage = client.df()
        return self._usage
