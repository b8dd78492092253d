"""Turn what pydantic finds wrong with a file into one sentence each, with the key and its position."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from builder.errors import Code, UsageError
from builder.matrix.yaml_document import Document

M = TypeVar("M", bound=BaseModel)
_MUST_BE = {
    "list_type": "must be a list",
    "string_type": "must be text",
    "dict_type": "must be a mapping of keys",
    "model_type": "must be a mapping of keys",
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "too_short": "must list at least one value",
    "string_too_short": "must not be empty",
}
#: What to write for a missing key whose values a new user does not know.
_ADVICE = {
    "abi": "; write `abi: cpython`, which works for every extension: one wheel for each torch series, CUDA and Python",
    "imports": "; list the modules that users import, for example `imports: [my_extension]`",
}


def validate(document: Document, model: type[M]) -> M:
    """Return the document as a model.

    Raises:
        UsageError: the first error in the file; the hints are the other errors.

    """
    try:
        return model.model_validate(document.data)
    except ValidationError as error:
        problems = [_problem(document, model, details) for details in error.errors(include_url=False)]
    problems.sort(key=lambda problem: problem[0])
    first, *others = [(where, sentence) for _, where, sentence in problems]
    raise UsageError(
        first[1], Code.KEY_INVALID, where=first[0], hints=[f"also, {where}: {sentence}" for where, sentence in others]
    )


def key_path(key: Sequence[str | int]) -> str:
    """Return a key path as text: `exclude[0].torch`."""
    text = ""
    for part in key:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _problem(document: Document, model: type[BaseModel], details: ErrorDetails) -> tuple[tuple[int, ...], str, str]:
    """Return an error's sort key, its position and its sentence."""
    loc, kind = details["loc"], details["type"]
    # A misspelt key is reported as unknown and as missing; the unknown key, which is in the file, comes first.
    order = (kind == "missing", *document.positions.get(document.nearest_key(loc), (0, 0)))
    if kind == "missing":
        problem = "has no value" if loc in document.positions else "is missing"
        return order, document.where(loc), f"key `{key_path(loc)}` {problem}{_ADVICE.get(str(loc[-1]), '')}"
    # pydantic may report a key that is not in the file (the long form of a short rule): name the key around it.
    path = key_path(document.nearest_key(loc)) or "the file"
    return order, document.where(loc), _sentence(path, loc, model, details)


def _sentence(path: str, loc: Sequence[str | int], model: type[BaseModel], details: ErrorDetails) -> str:
    kind, given = details["type"], details["input"]
    context = details.get("ctx", {})
    if kind == "extra_forbidden":
        near = get_close_matches(str(loc[-1]), _keys(model, loc[:-1]), n=1)
        return f"unknown key `{path}`" + (f"; did you mean `{near[0]}`?" if near else "")
    if kind == "value_error":
        return f"`{path}`: {context['error']}"
    if kind == "list_type" and isinstance(given, str):
        return f"`{path}` must be a list; write [{given}]"
    if kind in ("enum", "literal_error"):
        return f"`{path}` must be {context['expected']}, not {given!r}"
    return f"`{path}` {_MUST_BE[kind]}" if kind in _MUST_BE else f"`{path}`: {details['msg']}"


def _keys(model: type[BaseModel], loc: Sequence[str | int]) -> list[str]:
    """Return the keys that the model has at a key path."""
    for part in loc:
        if isinstance(part, str):
            inner = next(f for name, f in model.model_fields.items() if (f.alias or name) == part).annotation
            inner = next((arg for arg in get_args(inner) if isinstance(arg, type)), inner)
            if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
                return []
            model = inner
    return [f.alias or name for name, f in model.model_fields.items()]
