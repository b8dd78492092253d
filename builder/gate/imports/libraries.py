"""The libraries of the installed wheel, and which of them the imports of the recipe did not load.

Runs before cases.py is imported. A library that no import loads registers no op, so the gate would not test it and
would not miss it. Libraries are searched for strings, because the gate has no ELF reader.
"""

from __future__ import annotations

import filecmp
import importlib.metadata
import mmap
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from builder.gate.imports.extension_modules import entry_points
from builder.gate.outcome import NOT_RUN, PASSED, Outcome, Spec
from builder.gate.system.files import mapped_files

_RUNTIME = re.compile(rb"\0lib(?:cudart|cublas|cublasLt|nvrtc|nvJitLink)\.so\.(\d+)[.\d]*(?=\0)")
#: What libraries for GPUs of others need.
_OTHER_GPUS = {b"\0libamdhip64.so": "AMD", b"\0libsycl.so": "Intel"}
#: Of the name of `torch::autograd::CppNode`, as compilers write it.
_FORMULA = b"5torch8autograd7CppNode"
_SHARED = re.compile(r"\.so(\.\d+)*$")


def installed_libraries(distribution: str) -> list[dict[str, Any]] | None:
    """Return the shared libraries of an installed distribution as JSON data, or None if it is not installed.

    `path` is the path in the wheel; `loaded` whether this process has loaded it; `gpu` whether it has a section of GPU
    code; `module` the dotted name if it is an extension module, else ""; `other` the CUDA of an unloaded library if
    torch has another one, else ""; `cuda` that of torch if the wheel has no library for it, else "". Libraries that
    only another unloaded library needs are left out, and so are unloaded copies of another library.
    """
    try:
        files = importlib.metadata.files(distribution) or ()
    except importlib.metadata.PackageNotFoundError:
        return None
    loaded = mapped_files()
    found: dict[str, dict[str, Any]] = {}
    for file in files:
        path = os.path.realpath(str(file.locate()))
        if _SHARED.search(file.name) and Path(path).is_file():
            stem = file.name.partition(".")[0]
            is_module = any(_contains(path, function) for function in entry_points(stem))
            found[path] = {
                "path": str(PurePosixPath(file)),
                "module": ".".join([*file.parent.parts, stem]) if is_module else "",
                "gpu": _contains(path, ".nv_fatbin"),
                "other": "",
                "cuda": "",
                "loaded": path in loaded,
            }
    missing = [path for path in found if not found[path]["loaded"]]
    needed = {path for path in missing if any(other != path and _contains(other, Path(path).name) for other in missing)}
    copies = _copies(found, missing)
    # Empty without torch, or for a torch without CUDA.
    cuda = str(getattr(getattr(sys.modules.get("torch"), "version", None), "cuda", None) or "")
    runtimes = {path: _runtimes(path) for path in found}
    served = any(cuda.partition(".")[0] in majors for majors in runtimes.values())
    for path in missing:
        wrong = runtimes[path]
        if cuda and wrong and cuda.partition(".")[0] not in wrong:
            found[path] |= {"other": f"CUDA {', '.join(wrong)}", "cuda": "" if served else cuda}
        elif cuda and (vendor := next((who for name, who in _OTHER_GPUS.items() if _holds(path, name)), "")):
            found[path]["other"] = f"GPUs of {vendor}"
    return [facts for path, facts in sorted(found.items()) if path not in needed | copies]


def loaded_code(modules: Sequence[str]) -> tuple[bool, bool]:
    """What the libraries hold that this process has loaded from the packages of these modules.

    Whether one has a section of GPU code; whether one has a formula for a gradient, `torch::autograd::Function` of C++,
    by the name of the type that torch makes of it.
    """
    packages = [sys.modules[top] for top in {name.partition(".")[0] for name in modules} & sys.modules.keys()]
    folders = [f"{os.path.realpath(folder)}/" for one in packages for folder in getattr(one, "__path__", ())]
    files = [os.path.realpath(file) for one in packages if (file := getattr(one, "__file__", None))]
    mapped = [path for path in mapped_files() if path.startswith((*folders, *files)) and Path(path).is_file()]
    return any(_contains(path, ".nv_fatbin") for path in mapped), any(_holds(path, _FORMULA) for path in mapped)


def _copies(found: Mapping[str, Mapping[str, Any]], missing: Sequence[str]) -> set[str]:
    """The unloaded libraries whose bytes are those of a loaded one, or of an unloaded one before them."""
    known: dict[int, list[str]] = {}
    copies = set()
    for path in sorted(found, key=lambda path: (path in missing, path)):
        alike = known.setdefault(Path(path).stat().st_size, [])
        if path in missing and any(filecmp.cmp(path, other, shallow=False) for other in alike):
            copies.add(path)
        alike.append(path)
    return copies


def _runtimes(path: str) -> list[str]:
    """The major versions of CUDA whose runtime a library names."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:  # noqa: PTH123
        return sorted({found[1].decode() for found in _RUNTIME.finditer(data)})


def _contains(path: str, text: str) -> bool:
    """Whether a file contains this text between two zero bytes, as in a table of strings."""
    return _holds(path, b"\0" + text.encode() + b"\0")


def _holds(path: str, text: bytes) -> bool:
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:  # noqa: PTH123
        return data.find(text) != -1


def loaded_libraries(libraries: Sequence[Mapping[str, Any]] | None, spec: Spec) -> list[Outcome]:
    """Return the outcomes of the check "loaded": one for each library."""
    if not libraries:
        reason = "the wheel contains no shared library" if libraries is not None else f"{spec.name} is not installed"
        return [Outcome("loaded", "", "", NOT_RUN, reason)]
    modules = [one["module"] for one in libraries if not (one["loaded"] or one["other"])]
    imports = ", ".join([*spec.imports, *filter(None, modules)])
    outcomes = []
    for one in libraries:
        if one["loaded"]:
            outcomes.append(Outcome("loaded", "", one["path"], PASSED))
            continue
        if one["other"] and not one["cuda"]:
            outcomes.append(Outcome("loaded", "", one["path"], PASSED, f"not loaded here: it is for {one['other']}"))
            continue
        cure = (
            f"write `imports: [{imports}]`" if one["module"] else "add the module that loads the library to `imports`"
        )
        if one["cuda"]:
            cure = f"it needs the runtime of {one['other']}, and torch has CUDA {one['cuda']}"
        reason = (
            f"no import of the recipe loads this library{' with GPU code' if one['gpu'] else ''}, so its ops were not "
            f"looked for: {cure}, or add it to `accepts` if the package loads it only on demand or on other GPUs"
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
