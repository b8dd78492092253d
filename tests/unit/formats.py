"""The code behind each format number of `builder/formats.py`. `formats.txt` has a line for each number.

`python -m tests.unit.formats` renews the lines of raised numbers. With `--equal REASON` it renews every line.
"""

import argparse
import ast
import hashlib
import re
import sys
from functools import cache
from pathlib import Path

from builder import formats
from builder.wheels.build_scripts import PACKAGE

FILE = Path(__file__).with_name("formats.txt")

_CELL = ("proofs/cells", "wheels/toolchain")
_STATIC = ("proofs/file_checks.py", "proofs/static", "wheelfile")
#: Number → the folders and files of `builder/` that can change the output.
GROUPS: dict[str, tuple[str, ...]] = {
    "BUILD_FORMAT": ("records.py", "wheelfile", "wheels"),
    "FACTS_FORMAT": ("wheelfile",),
    "STATIC_FORMAT": _STATIC,
    "LINKAGE_FORMAT": (*_STATIC, *_CELL),
    "CELL_FORMAT": _CELL,
    "OPS_FORMAT": (*_CELL, "gate"),
    "VERIFY_FORMAT": (
        "proofs/file_checks.py",
        "proofs/claimed_cells.py",
        "proofs/inventory.py",
        "proofs/verify",
    ),  # with those of STATIC_FORMAT
    "PROTOCOL": (
        *("commands/distributed", "records.py", "gate/outcome.py", "proof.py"),
        *("matrix/axes.py", "matrix/config.py", "matrix/plan.py"),
    ),
}
#: Folders that can change no output.
NOT_COVERED = {
    *("cli", "commands", "diagnosis", "images", "matrix", "progress", "proofs/environment", "publish", "recipes"),
    "storage",
}
#: A line of the file: number, value, hash, reason. Markers of a merge conflict are none.
_LINE = re.compile(r"^(\w+) (\d+) ([0-9a-f]{16}) (.+)$", re.MULTILINE)
_HEAD = """\
# Number, value, hash of the code, reason of the last change. Written by `python -m tests.unit.formats`.
"""


def changed(text: str, package: Path = PACKAGE) -> list[str]:
    """Return the numbers whose line is missing, exists twice after a merge, or has another value or hash."""
    lines: dict[str, list[tuple[int, str]]] = {name: [] for name in GROUPS}
    for name, value, digest, _ in _LINE.findall(text):
        lines.setdefault(name, []).append((int(value), digest))
    return [name for name, found in lines.items() if found != [(_value(name), code_hash(name, package))]]


def renewed(text: str, equal: str, package: Path = PACKAGE) -> tuple[str, list[str]]:
    """Return the renewed text, and the numbers that are not raised and need a reason."""
    found = sorted(_LINE.findall(text), key=lambda line: int(line[1]))
    lines = {name: (int(value), digest, reason) for name, value, digest, reason in found}
    stale, refused = changed(text, package), []
    for name in GROUPS:
        if name in stale:
            raised = name not in lines or _value(name) > lines[name][0]
            if not raised and not equal:
                refused.append(name)
            lines[name] = (_value(name), code_hash(name, package), "raised" if raised else equal)
    return _HEAD + "".join(f"{name} {' '.join(map(str, lines[name]))}\n" for name in GROUPS), refused


def message(names: list[str]) -> str:
    """Return what the author of a change must do."""
    return (
        f"code has changed that can change the output of {', '.join(names)}\n"
        "If the same inputs now give a different output: raise the number in builder/formats.py, and run\n"
        "    python -m tests.unit.formats\n"
        "If they give the same output, run\n"
        '    python -m tests.unit.formats --equal "why the output stays equal"'
    )


def _value(name: str) -> int:
    return int(getattr(formats, name))


def code_hash(name: str, package: Path = PACKAGE) -> str:
    """Return 16 hex digits of a hash of the code behind a number; comments, docstrings and layout do not count."""
    digest = hashlib.sha256()
    for path in files_of(name, package):
        digest.update(
            f"{path.relative_to(package)}\n{_outline(path.read_text(), python=path.suffix == '.py')}\n".encode()
        )
    return digest.hexdigest()[:16]


def files_of(name: str, package: Path = PACKAGE) -> list[Path]:
    """Return the files behind a number, sorted, without bytecode."""
    found = [path for each in GROUPS[name] for path in (package / each, *(package / each).rglob("*"))]
    return sorted(path for path in found if path.is_file() and "__pycache__" not in path.parts)


@cache
def _outline(text: str, *, python: bool) -> str:
    if python:
        return repr(_fields(ast.parse(text)))
    return "\n".join(line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#"))


def _fields(node: object) -> object:
    """Return a syntax tree without texts that are statements and empty fields: the same in every Python."""
    if isinstance(node, ast.JoinedStr):  # Python 3.12.1 adds an empty text
        return [_fields(each) for each in node.values if getattr(each, "value", None) != ""]
    if isinstance(node, list):
        return [_fields(each) for each in node if not _is_docstring(each)]
    if isinstance(node, ast.AST):
        found = {name: _fields(value) for name, value in ast.iter_fields(node) if value not in (None, [])}
        return type(node).__name__, found
    return node


def _is_docstring(node: object) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def main(arguments: list[str]) -> str | None:
    """Renew the file; return an error."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--equal", metavar="REASON", default="", help="why the same inputs give the same output")
    text, refused = renewed(FILE.read_text(), parser.parse_args(arguments).equal)
    if refused:
        return message(refused)
    FILE.write_text(text)
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
