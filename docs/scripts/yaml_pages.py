"""The pages of matrix.yaml and extension.yaml, from their JSON schemas."""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from builder.matrix import models
from builder.matrix.models import MatrixModel, RecipeModel
from docs.scripts.markdown import code, page, sentence, table

_FORM = """\
The file is YAML. A version needs no quotes: buildfarm reads `2.10` as text. An unknown key is an error that names the
nearest known key."""

_MATRIX = """\
`matrix.yaml` lists the versions to build for and the extensions to build. buildfarm reads it from the current folder;
`--matrix FILE` names a different file. Commands that test, judge or publish
named wheels work without the file. A combination that does not exist, such as torch 2.2 with CUDA 13.0, is skipped;
`buildfarm plan --explain` prints the reason."""

_RECIPE = """\
`extension.yaml` says how one extension is built and tested. `extensions:` in `matrix.yaml` names its folder, the
recipe. A [`cases.py`](cases-py.md) in the same folder tells the op gate how to call each op.
[Build environment](build-environment.md) lists what a build can use."""


def _meanings() -> Iterator[tuple[tuple[str, str], str]]:
    """Class and key, and the string below the key. pydantic can read them too, but then each command would."""
    for model in ast.parse(inspect.getsource(models)).body:
        for field, text in pairwise(getattr(model, "body", [])):
            match field, text:
                case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str() as meaning)):
                    title = getattr(model, "name", "")
                    yield (title, getattr(models, title).model_fields[name].alias or name), inspect.cleandoc(meaning)


_MEANINGS = dict(_meanings())


def matrix_page() -> str:
    """The keys of matrix.yaml."""
    return _page("matrix.yaml", MatrixModel, _MATRIX)


def extension_page() -> str:
    """The keys of extension.yaml."""
    notes = Path(__file__).with_name("extension.md").read_text(encoding="utf-8")
    return _page("extension.yaml", RecipeModel, _RECIPE) + "\n" + notes


def _page(title: str, model: Any, introduction: str) -> str:  # noqa: ANN401
    data = model.model_json_schema()
    parts = [introduction, _FORM, "## Keys", _keys(data, data)]
    for name, definition in data.get("$defs", {}).items():
        if "properties" in definition:
            parts += [f"## {_heading(name)}", definition.get("description", ""), _keys(definition, data)]
        else:
            parts += [f"## {_heading(name)}", definition["description"]]
    return page(title, *parts)


def _heading(name: str) -> str:
    """`AbiClass` as "ABI class"."""
    words = {"AbiModel": "ABI rule", "AbiClass": "ABI class", "ExcludeModel": "Exclusion", "ImageModel": "Image"}
    return words.get(name, name.removesuffix("Model"))


def _keys(model: dict[str, Any], root: dict[str, Any]) -> str:
    required = set(model.get("required", ()))
    rows = []
    for name, field in model["properties"].items():
        default = "required" if name in required else _default(field.get("default"))
        rows.append([code(name), sentence(_MEANINGS[model["title"], name]), _type(field, root), default])
    return table(["key", "meaning", "value", "default"], rows)


def _default(value: object) -> str:
    return "" if value in (None, "", [], {}) else code(value if isinstance(value, str) else json.dumps(value))


def _type(field: dict[str, Any], root: dict[str, Any]) -> str:
    """What a value is, in words."""
    return " or ".join(dict.fromkeys(_words(field, root)))


def _words(field: dict[str, Any], root: dict[str, Any]) -> Iterator[str]:
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        heading = _heading(name)
        yield f"[{heading}](#{heading.lower().replace(' ', '-')})"
    elif "anyOf" in field:
        for each in field["anyOf"]:
            if each.get("type") != "null":
                yield from _words(each, root)
    elif "enum" in field:
        yield ", ".join(map(code, field["enum"]))
    elif field.get("type") == "array":
        yield f"list of {_type(field['items'], root)}"
    elif field.get("type") == "object":
        yield f"mapping to {_type(field['additionalProperties'], root)}"
    elif field.get("type") == "boolean":
        yield "`true` or `false`"
    elif field.get("type") == "integer":
        yield "number"
    else:
        yield "text"
