"""What `resolve` prints."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from builder.publish.index.resolve import Resolution, Target

#: Wheels that do not fit to print; `--json` has all.
_MOST = 20


def resolve_text(target: Target, found: Resolution, commands: Sequence[str], build_command: str) -> str:
    """The wheel and the commands that install it; else why each wheel does not fit, and the command that builds one."""
    if found.best:
        tested = f"tested in this cell: {found.level}" if found.level else "not tested in this cell"
        return "\n".join([f"{found.best.filename} ({tested})", "", *commands, ""])
    lines = [f"no wheel fits {_describe(target)}:"]
    lines += [f"  {name}: {reason}" for name, reason in list(found.misfits.items())[:_MOST]]
    if len(found.misfits) > _MOST:
        lines.append(f"  and {len(found.misfits) - _MOST} more; --json prints all")
    return "\n".join([*lines, "", f"to build one, run: {build_command}", ""])


def resolve_json(target: Target, found: Resolution, commands: Sequence[str], build_command: str) -> str:
    """Everything about the answer."""
    data: dict[str, Any] = {
        "cell": str(target.cell),
        "wheel": found.best.filename if found.best else None,
        "sha256": found.best.sha256 if found.best else None,
        "level": found.level,
        "install": dict(zip(("pip", "uv"), commands, strict=False)),
        "misfits": found.misfits,
        "build": build_command,
    }
    return json.dumps(data, indent=1) + "\n"


def _describe(target: Target) -> str:
    parts = [str(target.cell), target.machine]
    parts += [f"glibc {target.glibc[0]}.{target.glibc[1]}"] if target.glibc else []
    parts += [f"a GPU of compute capability {target.gpu.major}.{target.gpu.minor}"] if target.gpu else []
    return ", ".join(parts)
