"""What `store du` prints."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

from builder.publish.store.usage_text import usage_json, usage_text
from builder.storage.item import Item, Kind

USED = datetime(2026, 11, 22, tzinfo=UTC)
BUILD = Item(Kind.BUILDS, "a", "builds/a", 3 << 20, USED)
IMAGE = Item(Kind.IMAGES, "buildfarm/x:1", "buildfarm/x:1", 5 << 30, USED)


def test_the_total_of_the_store_leaves_out_the_container_engine() -> None:
    text = usage_text(Path("/store"), [BUILD, IMAGE], {}, [])
    assert "Deleting the whole store frees 3.0 MiB." in text
    assert "Deleting these images and volumes, which all stores on this machine share, frees 5.0 GiB." in text
    assert "images and volumes" not in usage_text(Path("/store"), [BUILD], {}, [])
    data = json.loads(usage_json(Path("/store"), [BUILD, IMAGE], {}, []))
    assert (data["size"], data["engine_size"]) == (3 << 20, 5 << 30)
