"""The templates of pages in HTML, with what all of them share."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from pathlib import Path
from typing import TYPE_CHECKING

from builder.publish.index.pages import quoted
from builder.publish.people.coverage import MISSING

if TYPE_CHECKING:
    from jinja2 import Environment

_HERE = Path(__file__).parent
#: The levels as a page shows them, the best first, and the words for the states of a cell.
LEVELS = ["gpu", "cpu", "static", "none"]
LABELS = {"gpu": "GPU", "cpu": "CPU", "static": "built", "none": "unproven", MISSING: "missing"}
_MEANINGS = {
    "gpu": "every op was run on a GPU, and every result is right",
    "cpu": "every op was run on the CPU, and every result is right",
    "static": "there is a wheel, and the checks that run no op passed",
    "none": "there is a wheel, and some of its checks did not run",
    MISSING: "planned, but there is no wheel, or only a yanked one",
    "failed": "a check failed",
    "not built": "there is no wheel, because the build failed",
}


def templates(*folders: Path, style: str = "", script: str = "") -> Environment:
    """The templates of these folders and of this one; `style` is added to the style of every page."""
    # jinja2 loads slowly, and `build` imports this module without making a page.
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # noqa: PLC0415

    environment = Environment(
        loader=FileSystemLoader([*folders, _HERE]),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"digest": _digest, "url": quoted}
    environment.globals |= {
        "labels": LABELS,
        "levels": LEVELS,
        "meanings": _MEANINGS,
        "script": script,
        "style": "\n".join(text for text in ((_HERE / "style.css").read_text(), style) if text),
    }
    return environment


def _digest(text: str) -> str:
    """The hash that lets a browser accept this style or script of the page, and no other (Content-Security-Policy)."""
    return f"sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
