"""The schemas editors use are those of the code, and take what the farm ships."""

from __future__ import annotations

import json

import pytest

from builder.matrix.schema import schemas


@pytest.mark.parametrize(("path", "text"), [pytest.param(p, t, id=p.name) for p, t in schemas().items()])
def test_committed_schema_is_the_generated_one(path: object, text: str) -> None:
    from pathlib import Path

    assert Path(str(path)).read_text(encoding="utf-8") == text, "run python -m builder.matrix.schema"


def test_schema_tells_an_editor_what_people_write() -> None:
    by_name = {path.name: json.loads(text) for path, text in schemas().items()}
    matrix, recipe = by_name["matrix.schema.json"], by_name["extension.schema.json"]
    assert matrix["properties"]["torch"]["items"]["type"] == [
        "string",
        "number",
    ]  # an editor sees 2.10 as a number
    assert matrix["required"] == ["torch", "cuda", "python", "extensions"]
    assert matrix["additionalProperties"] is False
    assert recipe["properties"]["memory_per_job"]["default"] == "2GiB"
    assert {"$ref": "#/$defs/AbiClass"} in recipe["properties"]["abi"]["anyOf"]  # `abi: cpython` is enough
