"""TORCH_TARGET_VERSION in the files of a source: the oldest torch that it compiles a stable-ABI library for.

The bytes of the number are major, minor and patch version (torch/headeronly/version.h of torch 2.11).
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from builder.matrix.axes import Torch

#: Folders that hold no code of the extension itself.
_FOREIGN = {
    "third_party", "thirdparty", "3rdparty", "external", "extern", "deps", "submodules", "cutlass", "cub", "thrust",
    "node_modules", "test", "tests", "examples", "benchmark", "benchmarks", "docs", "build", "dist", "venv", "env",
    "__pycache__",
}  # fmt: skip
NATIVE = (".c", ".cc", ".cpp", ".cu", ".cuh", ".cxx", ".h", ".hpp", ".inl")
_BUILD = (".py", ".cmake", ".toml", ".cfg", "CMakeLists.txt", "meson.build", "Makefile")
_MAX_BYTES = 4 << 20
_NAME = "TORCH_TARGET_VERSION"
#: The line of a header or source that defines the macro.
_DEFINE = re.compile(rf"^[ \t]*#[ \t]*define[ \t]+{_NAME}[ \t]+([^\n]+)", re.MULTILINE)
#: An option, a pair or a key in a file of the build; `#` begins a comment.
_OPTION = re.compile(rf"^[^#\n]*?(?:-D|[\"'(.\s]|^){_NAME}(?:[\"']?[ \t]*[,:=]|[ \t])[ \t]*([^\n]+)", re.MULTILINE)
_NUMBER = re.compile(r"[\"'(]*(0x[0-9a-fA-F]+)")
_MAJOR, _MINOR = (re.compile(rf"(\d+)[UL]*\s*\)?\s*<<\s*{bits}") for bits in (56, 48))
_MACRO = re.compile(r"TORCH_VERSION_(\d+)_(\d+)_\d+")


@dataclass(frozen=True, order=True)
class TargetVersion:
    """A value of TORCH_TARGET_VERSION, and the file and the line that have it."""

    value: int
    file: str
    line: int

    @property
    def torch(self) -> Torch:
        """The torch that the value means; 0.0.0 for one that means none, such as 0x0210."""
        return Torch(self.value >> 56, self.value >> 48 & 0xFF, 0)

    @property
    def meant(self) -> Torch:
        """The torch whose version the digits show: 2.10 for 0x0210, which means 2.16 or, without its zeros, none."""
        digits = f"{self.value:x}".ljust(3, "0")
        return Torch(int(digits[0], 16), int(digits[1:3], 10 if digits[1:3].isdecimal() else 16), 0)

    def suits(self, torch: Torch) -> bool:
        """Whether the value means this torch or an older one."""
        return Torch(1, 0, 0) <= self.torch <= torch

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def target_version(tree: Path, torch: Torch, options: str = "", name: str = "") -> TargetVersion | None:
    """The value in the files below a folder, or in `options` of a file of this name; None if only the run knows it.

    Of several values, the newest that suits this torch; the smallest one if none does.
    """
    own = (path for path, foreign in source_files(tree, (*NATIVE, *_BUILD)) if not foreign)
    texts = ((path, path.read_text(encoding="utf-8", errors="replace")) for path in own)
    found = [one for path, text in texts for one in _values(path.relative_to(tree).as_posix(), text)]
    found = sorted([*found, *_values(name, options)])
    return max((one for one in found if one.suits(torch)), default=found[0] if found else None)


def written(torch: Torch) -> str:
    """The value for a torch: 0x020a000000000000 for 2.10."""
    return f"0x{torch.major:02x}{torch.minor:02x}{'0' * 12}"


def source_files(tree: Path, ends: tuple[str, ...]) -> Iterator[tuple[Path, bool]]:
    """The files of a source whose names end so, and whether a folder on the path holds code of others.

    Hidden folders and large files are left out.
    """
    for folder, folders, names in os.walk(tree):
        folders[:] = [name for name in folders if not name.startswith(".")]
        foreign = not _FOREIGN.isdisjoint(Path(folder).relative_to(tree).parts)
        for name in names:
            path = Path(folder, name)
            if name.endswith(ends) and path.is_file() and path.stat().st_size <= _MAX_BYTES:
                yield path, foreign


def _values(name: str, text: str) -> Iterator[TargetVersion]:
    if _NAME in text:
        for found in (_DEFINE if name.endswith(NATIVE) else _OPTION).finditer(text):
            if value := _value(found[1], text):
                yield TargetVersion(value, name, text.count("\n", 0, found.start(1)) + 1)


def _value(expression: str, text: str) -> int:
    """The value of an expression; 0 for one that cannot be read. `text` is the file, which may assign a variable."""
    if number := _NUMBER.match(expression):
        return int(number[1], 16)
    major, minor = _MAJOR.search(expression), _MINOR.search(expression)
    if macro := _MACRO.search(expression):
        return (int(macro[1]) << 56) + (int(macro[2]) << 48)
    if major and minor:
        return (int(major[1]) << 56) + (int(minor[1]) << 48)
    if variable := re.search(r"[A-Za-z_]\w{2,}", expression):
        assigned = rf"\b{variable[0]}\b[ \t]*(?::[ \t]*\w+)?[ \t]*[= ][ \t]*[\"'(]*(0x[0-9a-fA-F]+)"
        found = re.search(assigned, text)
        return int(found[1], 16) if found else 0
    return 0
