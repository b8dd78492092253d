"""Read a YAML file as text, lists and mappings, with the position of every key for error messages."""

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from builder.errors import Code, UsageError
from builder.matrix.compat import did_you_mean

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
#: Characters that no value needs. A terminal acts on them, and no path and no argument can have the first of them.
_CONTROL = re.compile(r"[\0-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_NULL = "tag:yaml.org,2002:null"

#: Values of a file after its aliases are expanded. The matrix of this repository has 100.
MAX_VALUES = 20_000

#: Path of a value in the file, such as ("exclude", 0, "torch").
Key = tuple[str | int, ...]


@dataclass(frozen=True)
class Document:
    """A parsed file."""

    #: Path of the file, as given.
    path: Path
    #: Its mapping. Scalars are the text as written: `2.10` is "2.10", `yes` is "yes"; an empty value is None.
    data: dict[str, Any]
    #: Line and column of each key and of each list item, both from 1.
    positions: dict[Key, tuple[int, int]]

    def nearest_key(self, key: Sequence[str | int]) -> Key:
        """Return the longest prefix of a key path that is in the file."""
        prefix = tuple(key)
        while prefix and prefix not in self.positions:
            prefix = prefix[:-1]
        return prefix

    def where(self, key: Sequence[str | int]) -> str:
        """Return the position of a key, or of the nearest key around it, as text: `matrix.yaml:12:5`."""
        return ":".join([str(self.path), *map(str, self.positions.get(self.nearest_key(key)) or ())])


def read_document(path: Path) -> Document:
    """Read one YAML file whose top level is a mapping.

    Raises UsageError: the file is missing, is not UTF-8, is not YAML, is not a mapping, or holds a key twice.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError("there is no such file", Code.NO_SUCH_FILE, where=str(path)) from None
    except UnicodeDecodeError as error:
        raise UsageError(f"this is not UTF-8 text (byte {error.start})", Code.FILE_INVALID, where=str(path)) from None
    except OSError as error:
        raise UsageError(f"the file cannot be read: {error.strerror}", Code.PATH_NOT_USABLE, where=str(path)) from None
    return parse_document(text, path)


def parse_document(text: str, path: Path) -> Document:
    """Read the text of a file. Raises UsageError: it is not YAML, is not a mapping, or holds a key twice."""
    reader = _Reader(path)
    try:
        root = yaml.compose(text, Loader=_LOADER)
        data = reader.plain(root, ()) if root else {}
    except RecursionError:
        raise UsageError("its values are nested too deeply", Code.FILE_INVALID, where=str(path)) from None
    except yaml.YAMLError as error:
        where, problem = str(path), str(error).splitlines()[0]
        if isinstance(error, yaml.MarkedYAMLError):
            problem = " ".join(part for part in (error.problem, error.context) if part)
            if mark := error.problem_mark or error.context_mark:
                where = f"{path}:{mark.line + 1}:{mark.column + 1}"
        raise UsageError(f"this is not valid YAML: {problem}", Code.FILE_INVALID, where=where) from None
    if not isinstance(data, dict):
        sentence = "the file must be a mapping of keys, such as `torch: [2.11]`"
        raise UsageError(sentence, Code.FILE_INVALID, where=str(path))
    return Document(path, data, reader.positions)


class _Reader:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.positions: dict[Key, tuple[int, int]] = {}
        self._values = 0

    def plain(self, node: yaml.Node, key: Key) -> Any:  # noqa: ANN401  # text, list, mapping or None
        self._values += 1
        if self._values > MAX_VALUES:
            raise self._refused(node, f"the file has more than {MAX_VALUES} values")
        if isinstance(node, yaml.ScalarNode):
            return None if node.tag == _NULL and not node.style else self._text(node)
        if not isinstance(node, yaml.SequenceNode):
            return self._mapping(node, key)
        for i, item in enumerate(node.value):
            self._record(item, (*key, i))
        return [self.plain(item, (*key, i)) for i, item in enumerate(node.value)]

    def _mapping(self, node: yaml.Node, key: Key) -> dict[Hashable, Any]:
        mapping: dict[Hashable, Any] = {}
        for name_node, value_node in node.value:
            if not isinstance(name_node, yaml.ScalarNode):
                raise self._refused(name_node, "a key must be plain text")
            name = self._text(name_node)
            if name in mapping:
                first = self.positions[(*key, name)][0]
                raise self._refused(name_node, f"key `{name}` is given twice, first on line {first}")
            self._record(name_node, (*key, name))
            mapping[name] = self.plain(value_node, (*key, name))
        return mapping

    def _text(self, node: yaml.ScalarNode) -> str:
        text = str(node.value)
        if control := _CONTROL.search(text):
            raise self._refused(node, f"a value has the control character {control[0]!r}")
        return text

    def _record(self, node: yaml.Node, key: Key) -> None:
        self.positions[key] = (node.start_mark.line + 1, node.start_mark.column + 1)

    def _refused(self, node: yaml.Node, sentence: str) -> UsageError:
        where = f"{self.path}:{node.start_mark.line + 1}:{node.start_mark.column + 1}"
        return UsageError(sentence, Code.FILE_INVALID, where=where)


M = TypeVar("M", bound=BaseModel)
_MUST_BE = {
    "list_type": "must be a list",
    "tuple_type": "must be a list",
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

    Raises UsageError: the first error in the file; the hints are the other errors.
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
    given, context = details["input"], details.get("ctx", {})
    match details["type"]:
        case "extra_forbidden":
            return f"unknown key `{path}`{did_you_mean(str(loc[-1]), _keys(model, loc[:-1]))}"
        case "value_error":
            return f"`{path}`: {context['error']}"
        case "list_type" | "tuple_type" if isinstance(given, str):
            return f"`{path}` must be a list; write [{given}]"
        case "enum" | "literal_error":
            return f"`{path}` must be {context['expected']}, not {given!r}"
        case "greater_than":
            return f"`{path}` must be greater than {context['gt']}, not {given}"
        case "int_parsing":
            return f"`{path}` must be a whole number, not {given!r}"
        case kind:
            return f"`{path}` {_MUST_BE[kind]}" if kind in _MUST_BE else f"`{path}`: {details['msg']}"


def _keys(model: type[BaseModel], loc: Sequence[str | int]) -> list[str]:
    for part in loc:
        if isinstance(part, str):
            inner = next(f for name, f in model.model_fields.items() if (f.alias or name) == part).annotation
            inner = next((arg for arg in get_args(inner) if isinstance(arg, type)), inner)
            if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
                return []
            model = inner
    return [f.alias or name for name, f in model.model_fields.items()]
