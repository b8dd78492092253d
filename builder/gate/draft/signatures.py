"""The parameters of an op: from its schema, from the docstring of a pybind function, or from a Python signature."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from builder.gate.context import resolve

#: The kind of a type whose text names one of these words; a list of it has the kind with an `s`.
_KINDS = (
    (r"tensor", "tensor"),
    (r"scalartype|dtype", "dtype"),
    (r"device", "device"),
    (r"bool", "bool"),
    (r"(supports)?float|double|scalar|number", "float"),
    (r"(supports|sym)?int|size", "int"),
    (r"str", "str"),
)
_LIST = re.compile(r"(list|sequence|tuple|vector|iterable)\d*\b|\[\d*\]|\bsize\b")
#: A parameter in a docstring: brackets may have commas in them.
_PART = re.compile(r"(?:[^,(\[<]|\([^)]*\)|\[[^\]]*\]|<[^>]*>)+")


@dataclass(frozen=True)
class Parameter:
    """A parameter of an op."""

    name: str  # as the schema or the signature calls it
    kind: str  # one of _KINDS, or "other" for a type that a draft does not know
    optional: bool = False  # whether None is accepted
    default: Any = None  # its default value; `has_default` says whether there is one
    has_default: bool = False
    keyword: bool = False  # whether it must be given by name
    written: bool = False  # whether the schema says that the op writes to it


@dataclass(frozen=True)
class Signature:
    """The parameters of an op, and the text that shows them in the draft."""

    text: str
    parameters: Sequence[Parameter]

    @property
    def takes_tensor(self) -> bool:
        """Whether a parameter is a tensor or a list of tensors, or may be one because its type is not declared."""
        kinds = {one.kind for one in self.parameters if one.kind != "other" or not one.has_default}
        return bool(kinds & {"tensor", "tensors", "other"})


def signature_of(op: str) -> Signature | None:
    """Return the signature of what `resolve` finds, of a module that of `forward`; None if it is not known."""
    found = resolve(op)
    if isinstance(found, torch._ops.OpOverloadPacket):
        found = getattr(found, found.overloads()[0])
    schema = getattr(found, "_schema", None) or getattr(found, "schema", None)
    if schema is not None:
        return _of_schema(schema)
    if inspect.isbuiltin(found) or type(found).__name__ in {"builtin_function_or_method", "nb_func"}:
        return _of_docstring(found)
    return _of_python(found.forward if isinstance(found, torch.nn.Module) else found)


def _of_schema(schema: Any) -> Signature:  # noqa: ANN401
    parameters = [
        Parameter(
            one.name,
            _kind(str(one.type)),
            str(one.type).startswith("Optional[") or str(one.type).endswith("?"),
            one.default_value,
            one.has_default_value(),
            keyword=one.kwarg_only,
            written=one.alias_info is not None and one.alias_info.is_write,
        )
        for one in schema.arguments
    ]
    return Signature(str(schema), parameters)


def _of_docstring(function: Callable[..., Any]) -> Signature | None:
    """Read `name(input: torch.Tensor, dim: int = 0) -> torch.Tensor`, which pybind11 writes as the first line."""
    for line in (function.__doc__ or "").splitlines():
        found = re.match(r"\s*(?:\d+\. )?(\w+)\((.*)\)\s*(->.*)?$", line)
        if found and found[2].strip() != "*args, **kwargs":
            parts = [part.strip() for part in _PART.findall(found[2]) if part.strip() not in {"*", "/", ""}]
            return Signature(line.strip(), [_of_text(number, part) for number, part in enumerate(parts)])
    return None


def _of_text(number: int, part: str) -> Parameter:
    declared, _, default = (text.strip() for text in part.partition("="))
    name, _, kind = (text.strip() for text in declared.partition(":"))
    optional = "Optional" in kind or "| None" in kind
    try:
        value = ast.literal_eval(default)
    except (SyntaxError, ValueError):  # such as torch.float32
        value = default
    return Parameter(name or f"arg{number}", _kind(kind or "tensor"), optional, value, bool(default))


def _of_python(function: Callable[..., Any]) -> Signature | None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None
    parameters = []
    for one in signature.parameters.values():
        if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD):
            continue
        has_default = one.default is not one.empty
        text = "" if one.annotation is one.empty else str(one.annotation)
        if text and "[" not in text:
            text = str(getattr(one.annotation, "__name__", text))
        # The type of a default says the kind if there is no annotation.
        kind = _kind(text or (type(one.default).__name__ if has_default else ""))
        optional = "Optional" in text or "None" in text
        default = one.default if has_default else None
        parameters.append(Parameter(one.name, kind, optional, default, has_default, one.kind == one.KEYWORD_ONLY))
    return Signature(f"{getattr(function, '__name__', '')}{signature}", parameters)


def _kind(text: str) -> str:
    plain = text.lower()
    for pattern, kind in _KINDS:
        if re.search(rf"\b({pattern})\b", plain):
            return f"{kind}s" if _LIST.search(plain) and kind not in ("dtype", "device") else kind
    return "other"
