"""Values of Python expressions that need no run: constants, names assigned once, joined paths and texts."""

from __future__ import annotations

import ast

#: Stands in a text for a part that only the run knows. It reads as a glob pattern.
UNKNOWN = "*"


class Constants:
    """The constants of a module. A name that is assigned more than once has no known value."""

    def __init__(self, module: ast.Module) -> None:
        self._nodes: dict[str, list[ast.expr]] = {}
        self._open: set[str] = set()
        for node in ast.walk(module):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Name):
                        self._nodes.setdefault(target.id, []).append(node.value)
            elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
                self._nodes.setdefault(node.target.id, []).append(node.value)

    def value(self, node: ast.expr) -> object:
        """Return the value of an expression, or None; a text may hold `*` for parts that are not known."""
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                return self._of_name(name)
            case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items):
                return [value for item in items for value in self._items(item)]
            case ast.Dict(keys=keys, values=values):
                pairs = zip(keys, values, strict=True)
                return {str(self.value(key)): self.value(value) for key, value in pairs if key is not None}
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return self._sum(self.value(left), self.value(right))
            case ast.BinOp(left=left, op=ast.Div(), right=right):
                return f"{self._text(left)}/{self._text(right)}"
            case ast.JoinedStr(values=parts):
                return "".join(self._text(part) for part in parts)
            case ast.FormattedValue(value=inner):
                return self._text(inner)
            case ast.Call(func=ast.Attribute(attr="join", value=owner), args=args) if _is_path(owner):
                return "/".join(self._text(arg) for arg in args if not isinstance(arg, ast.Starred))
            case ast.Call(func=ast.Attribute(attr="glob") | ast.Name(id="glob"), args=[pattern, *_]):
                return [self._text(pattern)]
            case ast.Call(func=ast.Attribute(attr="format", value=owner)):
                return self._text(owner).replace("{}", UNKNOWN)
            case ast.Call(func=ast.Name(id="str" | "Path" | "sorted" | "list"), args=[inner]):
                return self.value(inner)
        return None

    def _of_name(self, name: str) -> object:
        nodes = self._nodes.get(name, [])
        if name in self._open or not nodes:
            return None
        self._open.add(name)
        try:
            values = [self.value(node) for node in nodes]
        finally:
            self._open.remove(name)
        if all(isinstance(value, list) for value in values):  # `sources = [...]`, then `sources += [...]`
            return [item for value in values if isinstance(value, list) for item in value]
        return values[0] if len(values) == 1 else None

    def _items(self, node: ast.expr) -> list[object]:
        value = self.value(node.value if isinstance(node, ast.Starred) else node)
        if isinstance(node, ast.Starred):
            return value if isinstance(value, list) else []
        return [] if value is None else [value]

    def _sum(self, left: object, right: object) -> object:
        if isinstance(left, list) or isinstance(right, list):
            return [*(left if isinstance(left, list) else ()), *(right if isinstance(right, list) else ())]
        if isinstance(left, str) or isinstance(right, str):
            return "".join(part if isinstance(part, str) else UNKNOWN for part in (left, right))
        return None

    def _text(self, node: ast.expr) -> str:
        value = self.value(node)
        return value if isinstance(value, str) else UNKNOWN


def _is_path(node: ast.expr) -> bool:
    """Whether an expression is `os.path` or a name of it, and not a text that joins a list."""
    return (isinstance(node, ast.Attribute) and node.attr == "path") or (
        isinstance(node, ast.Name) and node.id in ("osp", "path", "op")
    )
