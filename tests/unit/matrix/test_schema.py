"""The committed JSON schemas match the models, and every key is documented."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel, create_model

from builder.matrix.models import AbiModel, ExcludeModel, ImageModel, MatrixModel, RecipeModel, SourceModel, schemas


@pytest.mark.parametrize(("path", "text"), [pytest.param(p, t, id=p.name) for p, t in schemas().items()])
def test_committed_schema_is_the_generated_one(path: object, text: str) -> None:
    from pathlib import Path

    assert Path(str(path)).read_text(encoding="utf-8") == text, "run python -m builder.matrix.models"


def test_schema_accepts_what_people_write() -> None:
    by_name = {path.name: json.loads(text) for path, text in schemas().items()}
    matrix, recipe = by_name["matrix.schema.json"], by_name["extension.schema.json"]
    assert matrix["properties"]["torch"]["items"]["type"] == ["string", "number"]  # an editor reads 2.10 as a number
    assert matrix["required"] == ["torch", "cuda", "python", "extensions"]
    assert matrix["additionalProperties"] is False
    assert recipe["properties"]["memory_per_job"]["default"] == "2GiB"
    assert {"$ref": "#/$defs/AbiClass"} in recipe["properties"]["abi"]["anyOf"]  # the short form `abi: cpython`


@pytest.mark.parametrize("model", [MatrixModel, ExcludeModel, ImageModel, RecipeModel, AbiModel, SourceModel])
def test_every_key_has_a_description_and_a_valid_example(model: type[BaseModel]) -> None:
    for name, field in model.model_fields.items():
        assert field.description, name
        assert field.description.endswith("."), name
        assert field.examples, name
        for example in field.examples:
            definition: Any = {name: (field.annotation, field)}
            one_key: Any = create_model("OneKey", **definition)
            one_key.model_validate({field.alias or name: example})
