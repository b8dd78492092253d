"""Draws the recorded timeline of a run, as `buildfarm report` does."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import TypeAdapter

from builder.progress.display import Timeline
from builder.publish.runs.page import picture


def timeline_picture(recording: Path) -> str:
    """The SVG of a recording: the `timeline` of a run.json of the store, and the results of its builds."""
    data = json.loads(recording.read_text(encoding="utf-8"))
    return picture(TypeAdapter(Timeline).validate_python(data["timeline"]), data["results"])
