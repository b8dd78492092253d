"""What `rebuild --verify` prints: whether both wheels are equal, else where they differ; and the same as JSON."""

from __future__ import annotations

import json

from builder.result import RebuildResult


def rebuild_text(result: RebuildResult) -> str:
    """`equal, sha256 …`, or each difference on its own line."""
    if result.equal:
        return f"equal, sha256 {result.sha256}\n"
    count = len(result.differences)
    lines = [
        f"not equal: {count} difference{'s' * (count != 1)}",
        f"  {result.sha256}  {result.wheel}",
        f"  {result.rebuilt_sha256}  rebuilt",
        *(f"  {difference}" for difference in result.differences),
        "diffoscope shows the content that differs; `--out DIR` keeps the new wheel for it",
    ]
    return "\n".join(lines) + "\n"


def rebuild_json(result: RebuildResult) -> str:
    """The same for programs."""
    data = {
        "wheel": result.wheel,
        "sha256": result.sha256,
        "rebuilt_sha256": result.rebuilt_sha256,
        "equal": result.equal,
        "differences": [{"member": each.member, "what": each.what} for each in result.differences],
    }
    return json.dumps(data, indent=1) + "\n"
