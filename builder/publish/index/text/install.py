"""The commands that install a wheel from an index."""

from __future__ import annotations

import shlex
from collections.abc import Sequence


def install_commands(index: str, name: str, version: str, torch: Sequence[str], torch_index: str = "") -> list[str]:
    """The commands of pip and of uv that install this wheel from an index, quoted for a shell.

    `torch` are the requirements of a cell, and `torch_index` is the index that has them; empty: the default index. So
    the commands work in an empty environment, and keep a torch that fits. The exact version has a local part, which
    public indexes refuse, so that no package of the same name on another index can be installed instead.
    """
    wanted = [f"{name}=={version}", *torch]
    pip = ["pip", "install", "--extra-index-url", index, *(("--extra-index-url", torch_index) if torch_index else ())]
    uv = ["uv", "pip", "install", "--index", index, *(("--index", torch_index) if torch_index else ())]
    return [shlex.join([*pip, *wanted]), shlex.join([*uv, *wanted])]
