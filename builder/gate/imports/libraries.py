"""The libraries of the installed wheel, and which of them the imports of the recipe did not load.

Runs before cases.py is imported. A library that no import loads registers no op, so the gate would not test it and
would not miss it. Libraries are searched for strings, because the gate has no ELF reader.
"""

from __future__ import annotations

import importlib.metadata
import mmap
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from builder.gate.outcome import NOT_RUN, PASSED, Outcome, Spec
from builder.gate.system.mapped import mapped_files

_SHARED = re.compile(r"\.so(\.\d+)*$")


def installed_libraries(distribution: str) -> list[dict[str, Any]] | None:
    """Return the shared libraries of an installed distribution as JSON data, or None if it is not installed.

    `path` is the path in the wheel; `loaded` whether this process has loaded it; `gpu` whether it has a section of GPU
    code; `module` the dotted name if it is an extension module, else "". Libraries that only another unloaded library
    needs are left out.
    """
    try:
        files = importlib.metadata.files(distribution) or ()
    except importlib.metadata.PackageNotFoundError:
        return None
    loaded = mapped_files()
    found = {}
    for file in files:
        path = os.path.realpath(str(file.locate()))
        if _SHARED.search(file.name) and Path(path).is_file():
            found[path] = _facts(PurePosixPath(file), path) | {"loaded": path in loaded}
    missing = [path for path in found if not found[path]["loaded"]]
    needed = {path for path in missing if any(other != path and _contains(other, Path(path).name) for other in missing)}
    return [facts for path, facts in sorted(found.items()) if path not in needed]


def _facts(name: PurePosixPath, path: str) -> dict[str, Any]:
    stem = name.name.partition(".")[0]
    is_module = _contains(path, f"PyInit_{stem}")
    module = ".".join([*name.parent.parts, stem]) if is_module else ""
    return {"path": str(name), "module": module, "gpu": _contains(path, ".nv_fatbin")}


def _contains(path: str, text: str) -> bool:
    """Whether a file contains this text between two zero bytes, as in a table of strings."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:  # noqa: PTH123
        return data.find(b"\0" + text.encode() + b"\0") != -1


def loaded_libraries(libraries: Sequence[Mapping[str, Any]] | None, spec: Spec) -> list[Outcome]:
    """Return the outcomes of the check "loaded": one for each library."""
    if not libraries:
        reason = "the wheel contains no shared library" if libraries is not None else f"{spec.name} is not installed"
        return [Outcome("loaded", "", "", NOT_RUN, reason)]
    modules = [one["module"] for one in libraries if one["module"] and not one["loaded"]]
    imports = ", ".join([*spec.imports, *modules])
    outcomes = []
    for one in libraries:
        if one["loaded"]:
            outcomes.append(Outcome("loaded", "", one["path"], PASSED))
            continue
        cure = (
            f"write `imports: [{imports}]`" if one["module"] else "add the module that loads the library to `imports`"
        )
        reason = (
            f"no import of the recipe loads this library{' with GPU code' if one['gpu'] else ''}, so its ops were not "
            f"looked for: {cure}, or add the library to `accepts` if the package loads the library only on demand"
        )
        outcomes.append(Outcome("loaded", "", one["path"], NOT_RUN, reason, remark=True))
    return outcomes


def no_op(libraries: Sequence[Mapping[str, Any]] | None) -> Outcome:
    """Return the outcome of the check "ops" for imports that register no op."""
    gpu = [str(one["path"]) for one in libraries or () if one["gpu"]]
    code = f", although the wheel has GPU code ({', '.join(gpu[:3])})" if gpu else ""
    reason = (
        f"no op was found{code}, so no op was tested: add the module that registers the ops to `imports`, or list the "
        "modules with the Python functions under `PUBLIC` in cases.py"
    )
    return Outcome("ops", "", "", NOT_RUN, reason, remark=True)
