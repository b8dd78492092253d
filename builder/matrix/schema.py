"""JSON schemas of matrix.yaml and extension.yaml, for editors; `python -m builder.matrix.schema` writes them."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import BaseModel

from builder.matrix.models.matrix import MatrixModel
from builder.matrix.models.recipe import RecipeModel

_FILES: dict[str, type[BaseModel]] = {"matrix.schema.json": MatrixModel, "extension.schema.json": RecipeModel}


def schemas() -> dict[Path, str]:
    """Return the paths of the committed schema files, with the text that each must hold."""
    return {Path(__file__).with_name(name): _schema(model) for name, model in _FILES.items()}


def _schema(model: type[BaseModel]) -> str:
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return json.dumps({**head, **model.model_json_schema(by_alias=True)}, indent=2) + "\n"


if __name__ == "__main__":
    for path, text in schemas().items():
        path.write_text(text, encoding="utf-8")
