"""What a failed import and the source of the wheel say together: a file that was left out, an op without a schema."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from builder.diagnosis.known_errors import reports
from builder.diagnosis.setup_script import SetupFacts, read_setup_script
from builder.errors import BuildfarmError
from builder.matrix.config import PathSource, Recipe
from builder.wheels.sources.folder import source_files

_NO_FILE = re.compile(r"No such file or directory: '[^'\n]*?/site-packages/([^'\n]+)'")
_NO_OP = re.compile(r"'_OpNamespace' '(\w+)' object has no attribute '(\w+)'")
_NATIVE = (".c", ".cc", ".cpp", ".cu", ".cuh", ".cxx", ".h", ".hpp")
#: Bytes of a source file; larger ones are data.
_BYTES = 4 << 20


def import_hints(stderr: str, wheel: Path, recipe: Recipe) -> list[str]:
    """What to change in the source, whose folder must be on this machine; `stderr` is what the import printed."""
    if not isinstance(recipe.source, PathSource):
        return []
    try:
        files = source_files(recipe.source.path)
        with ZipFile(wheel) as archive:
            names = archive.namelist()
        script = read_setup_script(recipe.source.path)
        return [
            *_no_data(stderr, names, files),
            *_no_module(stderr, names, files, script),
            *_without_schema(stderr, files),
        ]
    except (BuildfarmError, OSError, BadZipFile):  # a hint is no reason for an error
        return []


def _no_data(stderr: str, names: Sequence[str], files: Sequence[tuple[str, Path]]) -> Iterator[str]:
    """A file that the wheel does not have where the import looks for it, and that the source has."""
    for file in _NO_FILE.findall(stderr)[-1:]:
        name = next((name for name, _ in files if f"/{name}".endswith(f"/{file}")), "")
        if name and file not in names:
            yield (
                f"the source has {name}, and the wheel does not: add it to `package_data` in setup.py, or to"
                " `[tool.setuptools.package-data]` in pyproject.toml"
            )


def _no_module(
    stderr: str, names: Sequence[str], files: Sequence[tuple[str, Path]], script: SetupFacts
) -> Iterator[str]:
    """A module that the wheel does not have, and that the source has or compiles."""
    found = [each for line in stderr.splitlines() if (each := reports("no-module", line) or reports("no-name", line))]
    module = ".".join(reversed(found[-1].groups())) if found else ""  # `ops` of `tiny` is tiny.ops
    path = module.replace(".", "/")
    if not found or any(name.startswith((f"{path}/", f"{path}.")) for name in names):
        return
    if any(extension.optional and extension.name == module for extension in script.extensions):
        yield (
            f"setup.py compiles {module} with `optional=True`, and the wheel does not have it: setuptools leaves out an"
            " optional extension whose compile fails; the log of the build has the error"
        )
        return
    # A copy of another project, deeper in the source, is not what the import means.
    places = [f"{home}{path}" for home in ("", "src/", "python/")]
    inside = [name for name, _ in files if name.endswith(".py") and name.startswith(tuple(f"{p}/" for p in places))]
    folder = next((place for place in places if inside and inside[0].startswith(f"{place}/")), "")
    file = next((name for name, _ in files if name in {f"{place}.py" for place in places}), "")
    if file and "." not in module:
        yield f"the source has {file}, and the wheel does not: add {module} to `py_modules` in setup.py"
    elif folder and f"{folder}/__init__.py" not in inside:
        yield (
            f"the source has {folder} without {folder}/__init__.py, so `find_packages()` leaves it out: add an empty"
            " __init__.py, or call `find_namespace_packages()`"
        )
    elif folder:
        yield f"the source has {folder}, and the wheel does not: add {module} to `packages` in setup.py"


def _without_schema(stderr: str, files: Sequence[tuple[str, Path]]) -> Iterator[str]:
    """An op that has kernels and no schema: torch does not know its name then."""
    for space, op in _NO_OP.findall(stderr)[-1:]:
        kernel = re.compile(rf'\bimpl\(\s*"(?:{space}::)?{op}[".]')
        schema = re.compile(rf'"(?:{space}::)?{op}(?:\.\w+)?\s*\(|\b(?:define|custom_op)\w*\(\s*["\']{space}::{op}\b')
        at = ""
        for name, path in files:
            if name.endswith((*_NATIVE, ".py")) and path.is_file() and path.stat().st_size <= _BYTES:
                text = path.read_text(encoding="utf-8", errors="replace")
                if schema.search(text):
                    return
                at = at or (name if kernel.search(text) else "")
        if at:
            yield (
                f'{at} has a kernel of {op} (`m.impl("{op}", …)`), and no file has its schema: add'
                f' `m.def("{op}(…) -> …")` to TORCH_LIBRARY({space}, m)'
            )
