"""LD_LIBRARY_PATH: whether the dynamic linker takes libraries from it that torch's packages bring.

A library with DT_RUNPATH searches LD_LIBRARY_PATH first. A library with DT_RPATH, such as torch's own, searches its own
folders first, and so do the libraries that it loads. This module repeats the search without loading anything.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from builder.errors import UsageError
from builder.gate.amounts import join_names
from builder.proofs.environment.cures import Cures, Finding, fault
from builder.proofs.environment.facts import TorchInstall
from builder.wheelfile.elf import read_elf

_VARIABLE = "LD_LIBRARY_PATH"


def check_library_path(cures: Cures, torch: TorchInstall) -> Iterator[Finding]:
    """No folder of LD_LIBRARY_PATH hides a library of torch or of its NVIDIA packages."""
    folders = [Path(entry) for entry in cures.environment.variables.get(_VARIABLE, "").split(":") if entry]
    own = {file.name: file for file in torch.folder.glob("nvidia/**/lib/*.so*")} if folders else {}
    own |= {file.name: file for file in torch.libraries.glob("*.so*")} if folders else {}
    rivals = {
        name: folder / name
        for folder in reversed(folders)
        for name, file in own.items()
        if (folder / name).is_file() and not (folder / name).samefile(file)
    }
    safe = _safe(torch, own) if rivals else set()
    hidden = {name: path for name, path in rivals.items() if name not in safe}
    if hidden:
        guilty = sorted({path.parent for path in hidden.values()})
        rest = ":".join(str(folder) for folder in folders if folder not in guilty)
        why = (
            "versions that do not belong together fail with `undefined symbol` or `version mismatch`, or compute slowly"
        )
        yield fault(
            "hidden-libraries",
            f"LD_LIBRARY_PATH names {', '.join(map(str, guilty))}, whose {join_names(sorted(hidden))} the linker loads"
            " instead of torch's",
            why,
            (f"export {_VARIABLE}={shlex.quote(rest)}" if rest else f"unset {_VARIABLE}",),
            "change the file that sets the variable, such as ~/.bashrc",
        )


def _safe(torch: TorchInstall, own: dict[str, Path]) -> set[str]:
    """The libraries that `import torch` finds through DT_RPATH, before LD_LIBRARY_PATH counts."""
    found: set[str] = set()
    first = [*torch.folder.glob("torch/_C*.so"), *torch.libraries.glob("lib*.so*")]
    todo: list[tuple[Path, tuple[Path, ...]]] = [(file, ()) for file in sorted(first)]
    seen: set[Path] = set()
    for file, inherited in todo:
        try:
            elf = read_elf(file) if file not in seen else None
        except (OSError, UsageError):
            continue
        if elf is None:
            continue
        seen.add(file)
        if elf.runpath:  # DT_RPATH does not count for this library
            continue
        origin = str(file.parent)
        texts = (text.replace("$ORIGIN", origin).replace("${ORIGIN}", origin) for text in elf.rpath)
        search = (*(Path(text).resolve() for text in texts), *inherited)
        for name in elf.needed:
            if name in own and own[name].resolve().parent in search:
                found.add(name)
                todo.append((own[name], search))
    return found
