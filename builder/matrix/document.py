"""A YAML file as text, lists and mappings, with the place of every key, so that an error can point at it."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from builder.errors import UsageError

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NULL = "tag:yaml.org,2002:null"
Place = tuple[int, int]
Key = tuple[str | int, ...]


@dataclass(frozen=True)
class Document:
    """One file.

    Attributes:
        path: the file, as the person named it.
        data: its mapping. Scalars are the text as written: `2.10` is "2.10", `yes` is "yes"; empty is None.
        places: line and column, from 1, of each key and each list item.

    """

    path: Path
    data: dict[str, Any]
    places: dict[Key, Place]

    def known(self, key: Sequence[str | int]) -> Key:
        """The longest beginning of a key path that the file really holds."""
        found = tuple(key)
        while found and found not in self.places:
            found = found[:-1]
        return found

    def where(self, key: Sequence[str | int]) -> str:
        """`matrix.yaml:12:5`, the place of a key or of the nearest one around it."""
        place = self.places.get(self.known(key))
        return ":".join([str(self.path), *map(str, place or ())])


def read_document(path: Path) -> Document:
    """Read one YAML file whose top level is a mapping.

    Raises:
        UsageError: no such file, not UTF-8, not YAML (line and column), a key given twice, not a mapping.

    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError("there is no such file", where=str(path), hints=["`--matrix FILE` names another"]) from None
    except IsADirectoryError:
        raise UsageError("this is a folder, not a file", where=str(path)) from None
    except UnicodeDecodeError as error:
        raise UsageError(f"this is not UTF-8 text (byte {error.start})", where=str(path)) from None
    except OSError as error:
        raise UsageError(f"it cannot be read: {error.strerror}", where=str(path)) from None
    try:
        root = yaml.compose(text, Loader=_LOADER)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        said = " ".join(part for part in (error.problem, error.context) if part)
        raise UsageError(f"this is not valid YAML: {said}", where=at) from None
    except yaml.YAMLError as error:
        said = str(error).splitlines()[0]
        raise UsageError(f"this is not valid YAML: {said}", where=str(path)) from None
    reader = _Reader(path)
    data = reader.plain(root, ()) if root else {}
    if not isinstance(data, dict):
        raise UsageError("the file must be a mapping of keys, such as `torch: [2.11]`", where=str(path))
    return Document(path, data, reader.places)


class _Reader:
    """Turns YAML nodes into plain data and notes where each stands."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.places: dict[Key, Place] = {}
        self._open: list[yaml.Node] = []

    def plain(self, node: yaml.Node, key: Key) -> Any:  # noqa: ANN401  # text, list, mapping or None: YAML is that
        if isinstance(node, yaml.ScalarNode):
            return None if node.tag == _NULL and not node.style else node.value
        if any(node is outer for outer in self._open):
            raise UsageError("an alias stands inside what it names", where=self._where(node))
        self._open.append(node)
        try:
            if isinstance(node, yaml.SequenceNode):
                return [self._item(item, (*key, i)) for i, item in enumerate(node.value)]
            return self._mapping(node, key)
        finally:
            self._open.pop()

    def _item(self, node: yaml.Node, key: Key) -> Any:  # noqa: ANN401
        self._note(node, key)
        return self.plain(node, key)

    def _mapping(self, node: yaml.Node, key: Key) -> dict[Hashable, Any]:
        found: dict[Hashable, Any] = {}
        for name_node, value_node in node.value:
            if not isinstance(name_node, yaml.ScalarNode):
                raise UsageError("a key must be plain text", where=self._where(name_node))
            name = name_node.value
            if name in found:
                first = self.places[(*key, name)][0]
                raise UsageError(f"key `{name}` is given twice, first in line {first}", where=self._where(name_node))
            self._note(name_node, (*key, name))
            found[name] = self.plain(value_node, (*key, name))
        return found

    def _note(self, node: yaml.Node, key: Key) -> None:
        self.places[key] = (node.start_mark.line + 1, node.start_mark.column + 1)

    def _where(self, node: yaml.Node) -> str:
        return f"{self.path}:{node.start_mark.line + 1}:{node.start_mark.column + 1}"
