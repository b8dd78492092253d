"""Add an item to a list or a mapping of a YAML file. The rest of the text, with its comments, stays as it is."""

from __future__ import annotations

from pathlib import Path

import yaml

from builder.errors import Code, UsageError
from builder.matrix.yaml_document import parse_document


def extended(text: str, path: Path, key: str, value: str, name: str = "", comment: str = "") -> str:
    """The text of the file `path` as `with_item` makes it; raises UsageError if the file then says something else."""
    old = parse_document(text, path).data
    values: object = {**(old.get(key) or {}), name: value} if name else [*(old.get(key) or ()), value]
    new = with_item(text, key, value, name, comment)
    if parse_document(new, path).data != {**old, key: values}:
        sentence = f"`{key}` has a form that buildfarm cannot extend"
        hint = f"add this line under `{key}`: {f'{name}: {value}' if name else f'- {value}'}"
        raise UsageError(sentence, Code.KEY_INVALID, where=str(path), hints=[hint])
    return new


def with_item(text: str, key: str, value: str, name: str = "", comment: str = "") -> str:
    """The text of a file with one more item in the list `key`; with a `name`, in the mapping `key`.

    A new key comes at the end, below the comment, or an empty line. Not every form can be extended: see `extended`.
    """
    item = f"{scalar(name)}: {scalar(value)}" if name else f"- {scalar(value)}"
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    pairs = root.value if isinstance(root, yaml.MappingNode) else []
    node = next((inner for outer, inner in pairs if outer.value == key), None)
    if node is None:
        return text.rstrip("\n") + f"\n{comment}\n{key}:\n  {item}\n"
    if isinstance(node, yaml.ScalarNode):  # the key without a value
        return _with_line(text, node.start_mark.index, f"  {item}")
    if node.flow_style:
        end = node.end_mark.index - 1
        head = text[:end].rstrip()
        comma = "" if not node.value or head.endswith(",") else ","
        return f"{head}{comma}{'' if head[-1] in '[{' else ' '}{item.removeprefix('- ')}{text[len(head) :]}"
    last = node.value[-1][1] if name else node.value[-1]
    end = last.end_mark.index if isinstance(last, yaml.ScalarNode) else last.start_mark.index
    return _with_line(text, end, " " * node.start_mark.column + item)


def scalar(text: str) -> str:
    """A text as YAML has it, on one line."""
    dumped: str = yaml.safe_dump(text, width=10_000, allow_unicode=True)
    return dumped.removesuffix("\n").removesuffix("\n...")


def _with_line(text: str, after: int, line: str) -> str:
    """The text with a line below the one that has this index."""
    end = text.find("\n", after)
    end = len(text) if end < 0 else end
    return f"{text[:end]}\n{line}{text[end:] or chr(10)}"
