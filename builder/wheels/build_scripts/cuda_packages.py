"""Facts about torch and the CUDA toolkit from the package index, for both executors."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path


def torch_cuda(site_packages: Path) -> str:
    """The CUDA version the installed torch was built for (`13.0`), read from its files; empty for a CPU build."""
    text = (site_packages / "torch" / "version.py").read_text(encoding="utf-8")
    match = re.search(r"^cuda(?:: [^=]+)? = '([\d.]+)'", text, re.MULTILINE)
    return match[1] if match else ""


def torch_mismatch(site_packages: Path, cuda: str) -> str:
    """Why the installed torch cannot serve a build for this CUDA version, or empty."""
    if (found := torch_cuda(site_packages)) == cuda:
        return ""
    return f"the index returned a torch for {f'CUDA {found}' if found else 'CPU only'} instead of CUDA {cuda}"


def link_toolkit(home: Path, major: str) -> None:
    """Complete the toolkit in `home`, the folder `nvidia/cu13` of an environment, for CUDA `major` (`13`).

    torch's cpp_extension looks for `lib64` and links `-lcudart`; the wheels ship `lib` and a versioned file only.
    """
    links = {home / "lib64": "lib", home / "lib" / "libcudart.so": f"libcudart.so.{major}"}
    for link, target in links.items():
        with suppress(FileExistsError):  # made by an earlier build, or by one that runs at the same time
            link.symlink_to(target)
