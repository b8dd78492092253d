"""Read a YAML file as text, lists and mappings, with the position of every key for error messages."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from builder.errors import Code, UsageError

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
#: Characters that no value needs. A terminal acts on them, and no path and no argument can have the first of them.
_CONTROL = re.compile(r"[\0-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_NULL = "tag:yaml.org,2002:null"

#: Characters of a file and of one value, nested values, and values of a file after its aliases are expanded. The
#: matrix of this repository has 3,000 characters, 100 values and 3 levels.
MAX_CHARACTERS, MAX_VALUE, MAX_DEPTH, MAX_VALUES = 2**20, 2**14, 20, 20_000
_TOO_DEEP = f"values are nested more than {MAX_DEPTH} levels deep"

#: Line and column, both from 1.
Position = tuple[int, int]

#: Path of a value in the file, such as ("exclude", 0, "torch").
Key = tuple[str | int, ...]


@dataclass(frozen=True)
class Document:
    """A parsed file."""

    #: Path of the file, as given.
    path: Path
    #: Its mapping. Scalars are the text as written: `2.10` is "2.10", `yes` is "yes"; an empty value is None.
    data: dict[str, Any]
    #: Position of each key and of each list item.
    positions: dict[Key, Position]

    def nearest_key(self, key: Sequence[str | int]) -> Key:
        """Return the longest prefix of a key path that is in the file."""
        prefix = tuple(key)
        while prefix and prefix not in self.positions:
            prefix = prefix[:-1]
        return prefix

    def where(self, key: Sequence[str | int]) -> str:
        """Return the position of a key, or of the nearest key around it, as text: `matrix.yaml:12:5`."""
        position = self.positions.get(self.nearest_key(key))
        return ":".join([str(self.path), *map(str, position or ())])


def read_document(path: Path) -> Document:
    """Read one YAML file whose top level is a mapping.

    Raises:
        UsageError: the file is missing, is not UTF-8, is not YAML, is not a mapping, or holds a key twice.

    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError("there is no such file", Code.NO_SUCH_FILE, where=str(path)) from None
    except IsADirectoryError:
        raise UsageError("this is a folder, not a file", Code.PATH_NOT_USABLE, where=str(path)) from None
    except UnicodeDecodeError as error:
        raise UsageError(f"this is not UTF-8 text (byte {error.start})", Code.YAML_INVALID, where=str(path)) from None
    except OSError as error:
        raise UsageError(f"the file cannot be read: {error.strerror}", Code.PATH_NOT_USABLE, where=str(path)) from None
    if len(text) > MAX_CHARACTERS:
        raise UsageError(f"the file has more than {MAX_CHARACTERS} characters", Code.YAML_TOO_LARGE, where=str(path))
    try:
        _check_depth(text, path)
        root = yaml.compose(text, Loader=_LOADER)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        problem = " ".join(part for part in (error.problem, error.context) if part)
        if "nesting depth" in problem:  # libyaml reads ahead, and has a limit of its own
            raise UsageError(_TOO_DEEP, Code.YAML_TOO_LARGE, where=where) from None
        raise UsageError(f"this is not valid YAML: {problem}", Code.YAML_INVALID, where=where) from None
    except yaml.YAMLError as error:
        problem = str(error).splitlines()[0]
        raise UsageError(f"this is not valid YAML: {problem}", Code.YAML_INVALID, where=str(path)) from None
    reader = _Reader(path)
    data = reader.plain(root, ()) if root else {}
    if not isinstance(data, dict):
        raise UsageError(
            "the file must be a mapping of keys, such as `torch: [2.11]`", Code.YAML_INVALID, where=str(path)
        )
    return Document(path, data, reader.positions)


def _check_depth(text: str, path: Path) -> None:
    """Refuse deep nesting: the parser of PyYAML recurses, and ends the process when the stack is full."""
    depth = 0
    for event in yaml.parse(text, Loader=_LOADER):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                line = event.start_mark.line + 1 if event.start_mark else 1
                raise UsageError(_TOO_DEEP, Code.YAML_TOO_LARGE, where=f"{path}:{line}")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


class _Reader:
    """Turns YAML nodes into plain data and records the position of each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.positions: dict[Key, Position] = {}
        self._open: list[yaml.Node] = []
        self._values = 0

    def plain(self, node: yaml.Node, key: Key) -> Any:  # noqa: ANN401  # text, list, mapping or None
        self._values += 1
        if self._values > MAX_VALUES:
            raise UsageError(
                f"the file has more than {MAX_VALUES} values", Code.YAML_TOO_LARGE, where=self._where(node)
            )
        if isinstance(node, yaml.ScalarNode):
            return None if node.tag == _NULL and not node.style else self._text(node)
        if any(node is outer for outer in self._open):
            raise UsageError("an alias is inside the value it refers to", Code.YAML_INVALID, where=self._where(node))
        self._open.append(node)
        try:
            if isinstance(node, yaml.SequenceNode):
                return [self._item(item, (*key, i)) for i, item in enumerate(node.value)]
            return self._mapping(node, key)
        finally:
            self._open.pop()

    def _item(self, node: yaml.Node, key: Key) -> Any:  # noqa: ANN401
        self._record(node, key)
        return self.plain(node, key)

    def _mapping(self, node: yaml.Node, key: Key) -> dict[Hashable, Any]:
        mapping: dict[Hashable, Any] = {}
        for name_node, value_node in node.value:
            if not isinstance(name_node, yaml.ScalarNode):
                raise UsageError("a key must be plain text", Code.YAML_INVALID, where=self._where(name_node))
            name = self._text(name_node)
            if name in mapping:
                first = self.positions[(*key, name)][0]
                raise UsageError(
                    f"key `{name}` is given twice, first on line {first}",
                    Code.YAML_INVALID,
                    where=self._where(name_node),
                )
            self._record(name_node, (*key, name))
            mapping[name] = self.plain(value_node, (*key, name))
        return mapping

    def _text(self, node: yaml.ScalarNode) -> str:
        text = str(node.value)
        if len(text) > MAX_VALUE:
            raise UsageError(
                f"a value has more than {MAX_VALUE} characters", Code.YAML_TOO_LARGE, where=self._where(node)
            )
        if control := _CONTROL.search(text):
            raise UsageError(
                f"a value has the control character {control[0]!r}", Code.YAML_INVALID, where=self._where(node)
            )
        return text

    def _record(self, node: yaml.Node, key: Key) -> None:
        self.positions[key] = (node.start_mark.line + 1, node.start_mark.column + 1)

    def _where(self, node: yaml.Node) -> str:
        return f"{self.path}:{node.start_mark.line + 1}:{node.start_mark.column + 1}"
