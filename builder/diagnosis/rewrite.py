"""Rewrite C++ and CUDA by its syntax tree: a pattern of code with holes, and the code that stands in its place.

A pattern is a name, an expression, a statement that ends in `;`, or an `#include`. `$X` is a hole for one node of the
tree, `$$$X` for any number of them, and `AT_DISPATCH_$M` for names that begin so. The replacement names the same holes.
What a hole found stays as it is written, with its comments and line ends. Comments and strings are never matched, the
text of a macro is. Only a pattern that begins with `asm ` is an instruction in the string of an `asm` statement; there
`$X` is a word. The tree is that of tree-sitter's grammar for CUDA, which contains C++.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache

import tree_sitter_cuda
from tree_sitter import Language, Node, Parser

#: What a name is called in the place where it stands; a pattern does not know the place.
_KINDS = {
    **dict.fromkeys(("type_identifier", "field_identifier", "namespace_identifier", "primitive_type"), "identifier"),
    **dict.fromkeys(("template_function", "template_method", "template_type"), "template"),
}
_HOLE = re.compile(r"(\$\$\$|\$)([A-Z]+)")
#: How often a pattern is applied to a file: once, and again for what was inside of a match.
_ROUNDS = 20
_BEFORE = b"void f() {\n"

Holes = dict[str, tuple[int, int]]


class NotRewrittenError(Exception):
    """Why a file stays as it is, for people."""


@cache
def _parser() -> Parser:
    return Parser(Language(tree_sitter_cuda.language()))


def rewrite(code: bytes, rules: Mapping[str, str], include: Sequence[str] = ()) -> bytes:
    """The code after each rule, a pattern and its replacement, in their order.

    Headers of `include` are added if a rule changed something. Raises NotRewrittenError if the code is not UTF-8, or if
    the result has more places than before that are no C++.
    """
    if not any(word in code for pattern in rules for word in _words(pattern)):
        return code
    _check_text(code)
    new = code
    for pattern, replacement in rules.items():
        new = _applied(new, pattern, replacement)
    for header in include if new != code else ():
        new = with_include(new, header)
    if new != code and faults(new) > faults(code):
        raise NotRewrittenError("the result would be no C++")
    return new


def matches(code: bytes, pattern: str) -> set[tuple[int, int]]:
    """Where a pattern is found: first byte and end."""
    return {(start, end) for start, end, _ in _found(code, pattern)}


def defines(code: bytes, pattern: str) -> bool:
    """Whether the file has a macro, a function or a type of its own with the first name of the pattern."""
    name = next(iter(_words(pattern)), b"")
    if not name or name not in code:
        return False
    for node in _nodes(_parser().parse(code).root_node):
        if node.type in {"preproc_def", "preproc_function_def", "function_declarator", "struct_specifier"}:
            named = node.child_by_field_name("name") or node.child_by_field_name("declarator")
            inside = node.type != "function_declarator" or (node.parent and node.parent.type == "function_definition")
            if named and named.text == name and inside:
                return True
    return False


def with_include(code: bytes, header: str) -> bytes:
    """The code with an `#include`, below the first one that stands below no condition; else at the top.

    Raises NotRewrittenError if the code is not UTF-8.
    """
    _check_text(code)
    tree, line = _parser().parse(code).root_node, f"#include <{header}>"
    tops = [node for node in tree.children if node.type != "comment"]
    if tops and tops[0].type == "preproc_ifdef" and tops[0].children[0].type == "#ifndef":  # an include guard
        tops = [*tops[0].children, *tops[1:]]
    includes = [node for node in tops if node.type == "preproc_include"]
    if any((node.text or b"").split(b"//")[0].strip().decode(errors="replace") == line for node in includes):
        return code
    once = next((node for node in tops if (node.text or b"").split() == [b"#pragma", b"once"]), None)
    first = next(iter(includes), once)
    at = code.find(b"\n", first.start_byte) + 1 if first else 0
    if first and not at:  # the last line has no end
        return code + b"\n" + line.encode()
    return code[:at] + line.encode() + (b"\r\n" if b"\r\n" in code else b"\n") + code[at:]


def faults(code: bytes) -> int:
    """How many places of the code are no C++, such as macros that hide half a statement."""
    return sum(node.is_error or node.is_missing for node in _nodes(_parser().parse(code).root_node))


def _check_text(code: bytes) -> None:
    try:
        code.decode()
    except UnicodeDecodeError:
        raise NotRewrittenError("it is not UTF-8") from None


def _applied(code: bytes, pattern: str, replacement: str) -> bytes:
    for _ in range(_ROUNDS):
        end, parts = 0, []
        for start, stop, holes in sorted(_found(code, pattern), key=lambda found: (found[0], -found[1])):
            if start < end:
                continue  # what is inside of a match waits for the next round
            texts = {name: code[slice(*span)].decode() for name, span in holes.items()}
            text = _HOLE.sub(lambda hole, texts=texts: texts[hole[2]], replacement).encode()  # type: ignore[misc]
            first, last = (start, stop) if text else _whole_line(code, start, stop)
            parts += [code[end:first], text]
            end = last
        new = b"".join([*parts, code[end:]])
        if new == code:
            break
        code = new
    return code


def _whole_line(code: bytes, start: int, stop: int) -> tuple[int, int]:
    """First byte and end of what goes: the whole line if nothing else is on it."""
    first, last = code.rfind(b"\n", 0, start) + 1, code.find(b"\n", stop) + 1 or len(code)
    alone = not code[first:start].strip() and not code[stop:last].strip()
    return (first, last) if alone else (start, stop)


def _found(code: bytes, pattern: str) -> Iterator[tuple[int, int, Holes]]:
    """First byte, end and holes of each match, in the code and in the text of its macros."""
    if not all(word in code for word in _words(pattern)):
        return
    wanted = _pattern(pattern)
    for node in _nodes(_parser().parse(code).root_node):
        yield from _match_at(wanted, node, 0)
        if node.type == "preproc_arg" and (text := node.text):
            shift = node.start_byte - len(_BEFORE)
            for inner in _nodes(_parser().parse(_BEFORE + text + b";\n}").root_node):
                if inner.start_byte >= len(_BEFORE) and inner.end_byte <= len(_BEFORE) + len(text):
                    yield from _match_at(wanted, inner, shift)


def _match_at(wanted: Node | re.Pattern[bytes], node: Node, shift: int) -> Iterator[tuple[int, int, Holes]]:
    if isinstance(wanted, re.Pattern):
        for found in wanted.finditer(node.text or b"") if _is_assembly(node) else ():
            first = node.start_byte + shift
            inside = {name: (first + found.start(name), first + found.end(name)) for name in wanted.groupindex}
            yield first + found.start(), first + found.end(), inside
        return
    if node.parent and node.parent.type.startswith("preproc_") and not node.child_count:
        return  # the name of a macro, not its use
    holes: Holes = {}
    if _fits(wanted, node, holes):
        moved = {name: (start + shift, end + shift) for name, (start, end) in holes.items()}
        end = node.end_byte - (node.type == "preproc_include" and (node.text or b"").endswith(b"\n"))
        yield node.start_byte + shift, end + shift, moved


def _is_assembly(node: Node) -> bool:
    """Whether the text is part of an `asm` statement."""
    above = node.parent if node.type == "string_content" else None
    while above and above.type in {"string_literal", "concatenated_string"}:
        above = above.parent
    return above is not None and above.type == "gnu_asm_expression"


@cache
def _pattern(pattern: str) -> Node | re.Pattern[bytes]:
    """The tree of a pattern; for an instruction, a regular expression. Raises ValueError if it is no C++."""
    if pattern.startswith("asm "):
        text = re.sub(r"\\\$\\\$\\\$([A-Z]+)", r"(?P<\1>[^;]*)", re.escape(pattern[len("asm ") :]))
        return re.compile(rb"\b" + re.sub(r"\\\$([A-Z]+)", r"(?P<\1>\\w+)", text).encode())
    code = pattern.encode()
    if pattern.startswith("#"):
        return _parser().parse(code + b"\n").root_node.children[0]
    root = _parser().parse(_BEFORE + code + (b"" if code.endswith(b";") else b";") + b"\n}").root_node
    if root.has_error:
        raise ValueError(f"the pattern {pattern} is no C++")
    ends = len(_BEFORE), len(_BEFORE) + len(code)
    return next(node for node in _nodes(root) if (node.start_byte, node.end_byte) == ends)


@cache
def _words(pattern: str) -> tuple[bytes, ...]:
    """The names that code must have for a match."""
    return tuple(word.encode() for word in re.findall(r"[A-Za-z_]\w+", _HOLE.sub(" ", pattern)))


def _nodes(top: Node) -> Iterator[Node]:
    """A node and all below it, in the order of the text."""
    rest = [top]
    while rest:
        node = rest.pop()
        yield node
        rest.extend(reversed(node.children))


def _fits(wanted: Node, node: Node, holes: Holes) -> bool:
    """Whether a node is what a pattern wants; fills the holes."""
    text, end = (wanted.text or b"").decode(), node.end_byte
    hole = _HOLE.search(text) if not wanted.child_count or _HOLE.fullmatch(text) else None
    if hole and not hole.start():
        holes[hole[2]] = (node.start_byte, end)
        return node.is_named
    if _KINDS.get(wanted.type, wanted.type) != _KINDS.get(node.type, node.type):
        return False
    if wanted.type == "preproc_include":
        return _header(wanted) == _header(node)
    if wanted.child_count:
        return _all_fit(wanted.children, [child for child in node.children if child.type != "comment"], holes)
    name = (node.text or b"").decode(errors="replace")
    if hole:
        holes[hole[2]] = (node.start_byte + hole.start(), end)
        return not node.child_count and name.startswith(text[: hole.start()])
    return not node.child_count and name == text


def _all_fit(wanted: Sequence[Node], nodes: Sequence[Node], holes: Holes) -> bool:
    if not wanted:
        return not nodes
    hole = _HOLE.fullmatch((wanted[0].text or b"").decode())
    if hole and hole[1] == "$$$":
        for count in range(len(nodes), -1, -1):
            if _all_fit(wanted[1:], nodes[count:], holes):
                holes[hole[2]] = (nodes[0].start_byte, nodes[count - 1].end_byte) if count else (0, 0)
                return True
        return False
    return bool(nodes) and _fits(wanted[0], nodes[0], holes) and _all_fit(wanted[1:], nodes[1:], holes)


def _header(include: Node) -> bytes:
    """The path of an `#include`, with quotes or with `<>`."""
    path = include.child_by_field_name("path")
    return (path.text or b"").strip(b'<>"') if path else b""
