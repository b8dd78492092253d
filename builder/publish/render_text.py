"""Rendered Dockerfiles as a person, and as a program, reads of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from builder.images.dockerfiles import Dockerfile, unpinned

_SCHEMA = 1


def render_text(folder: Path, files: Sequence[Dockerfile]) -> str:
    """A line for each image with what it stands on, then which bases may move."""
    builds, runs = ([file for file in files if file.kind == kind] for kind in ("build", "runtime"))
    width = max(len(file.file) for file in files)
    lines = [f"{'image to build in':{width}}  builds  cells  stands on"]
    lines += [f"{f.file:{width}}  {len(f.builds):6}  {len(f.cells):5}  {_base(f)}" for f in builds]
    lines += ["", f"{'image to run a cell in':{width}}                 stands on"]
    lines += [f"{f.file:{width}}                 {_base(f)}" for f in runs]
    lines += ["", f"in {folder}: {len(builds)} to build in, {len(runs)} to run cells in"]
    if loose := unpinned(files):
        lines += ["", f"not pinned ({len(loose)}; `buildfarm render --lock` asks their registries):"]
        lines += [f"  {base}" for base in loose]
    return "\n".join(lines) + "\n"


def render_json(folder: Path, files: Sequence[Dockerfile]) -> str:
    """Each image with its file, tag, bases and users."""
    images = [
        {
            "name": file.name,
            "kind": file.kind,
            "file": str(folder / file.file),
            "tag": file.tag,
            "base": file.base,
            "bases": list(file.bases),
            "builds": [str(build) for build in file.builds],
            "cells": [str(cell) for cell in file.cells],
        }
        for file in files
    ]
    return json.dumps({"schema": _SCHEMA, "images": images, "unpinned": list(unpinned(files))}, indent=1) + "\n"


def _base(file: Dockerfile) -> str:
    """The image of the last stage; a digest is said, not shown."""
    base, at, _ = file.base.partition("@")
    return f"{base} (pinned)" if at else base
