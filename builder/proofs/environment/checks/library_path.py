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
from builder.proofs.environment.cures import Cures, Finding, Severity
from builder.proofs.environment.facts import TorchInstall
from builder.wheelfile.elf import Elf, read_elf

_VARIABLE = "LD_LIBRARY_PATH"


def check_library_path(cures: Cures) -> Iterator[Finding]:
    """No folder of LD_LIBRARY_PATH hides a library of torch or of its NVIDIA packages."""
    torch, text = cures.environment.torch, cures.environment.variables.get(_VARIABLE, "")
    folders = [Path(entry) for entry in text.split(":") if entry]
    if torch is None or not folders:
        return
    hidden = hidden_libraries(torch, folders)
    if not hidden:
        return
    guilty = sorted({path.parent for path in hidden.values()})
    rest = ":".join(str(folder) for folder in folders if folder not in guilty)
    names = sorted(hidden)
    shown = join_names(names)
    yield Finding(
        "hidden-libraries",
        Severity.FAULT,
        f"LD_LIBRARY_PATH names {', '.join(map(str, guilty))}, whose {shown} the linker loads instead of torch's",
        "versions that do not belong together fail with `undefined symbol` or `version mismatch`, or compute slowly",
        (f"export {_VARIABLE}={shlex.quote(rest)}" if rest else f"unset {_VARIABLE}",),
        "change the file that sets the variable, such as ~/.bashrc",
    )


def hidden_libraries(torch: TorchInstall, folders: list[Path]) -> dict[str, Path]:
    """The files in these folders that would be loaded instead of torch's, by file name."""
    own = {file.name: file for file in torch.folder.glob("nvidia/**/lib/*.so*")}
    own |= {file.name: file for file in torch.libraries.glob("*.so*")}
    rivals = {
        name: folder / name
        for folder in reversed(folders)
        for name, file in own.items()
        if (folder / name).is_file() and not (folder / name).samefile(file)
    }
    if not rivals:
        return {}
    safe = _safe(torch, own)
    return {name: path for name, path in rivals.items() if name not in safe}


def _safe(torch: TorchInstall, own: dict[str, Path]) -> set[str]:
    """The libraries that `import torch` finds through DT_RPATH, before LD_LIBRARY_PATH counts."""
    found: set[str] = set()
    first = [*torch.folder.glob("torch/_C*.so"), *torch.libraries.glob("lib*.so*")]
    todo: list[tuple[Path, tuple[Path, ...]]] = [(file, ()) for file in sorted(first)]
    seen: set[Path] = set()
    while todo:
        file, inherited = todo.pop(0)
        if file in seen or (elf := _elf(file)) is None:
            continue
        seen.add(file)
        if elf.runpath:  # DT_RPATH does not count for this library
            continue
        search = (*_folders(elf, file), *inherited)
        for name in elf.needed:
            if name in own and own[name].resolve().parent in search:
                found.add(name)
                todo.append((own[name], search))
    return found


def _folders(elf: Elf, file: Path) -> tuple[Path, ...]:
    """The folders of DT_RPATH, complete."""
    origin = str(file.parent)
    texts = (text.replace("$ORIGIN", origin).replace("${ORIGIN}", origin) for text in elf.rpath)
    return tuple(Path(text).resolve() for text in texts)


def _elf(file: Path) -> Elf | None:
    try:
        return read_elf(file)
    except (OSError, UsageError):
        return None
