"""Add an item to a list or a mapping of a YAML file. The rest of the text, with its comments, stays as it is."""

from __future__ import annotations

import yaml


def with_item(text: str, key: str, value: str, name: str = "", comment: str = "") -> str:
    """The text of a file with one more item in the list `key`; with a `name`, in the mapping `key`.

    A new key comes at the end, below the comment, or an empty line. The caller reads the result: not every form can be
    extended.
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
