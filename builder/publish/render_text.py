"""What `render` prints: the Dockerfiles it wrote, as a table and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from builder.images.dockerfiles import Dockerfile, unpinned

_SCHEMA = 1


def render_text(folder: Path, files: Sequence[Dockerfile]) -> str:
    """A line for each image with its base image, then the base images that are not pinned to a digest."""
    builds, runtimes = ([file for file in files if file.kind == kind] for kind in ("build", "runtime"))
    width = max(len(file.file) for file in files)
    lines = [f"{'build image':{width}}  builds  cells  base image"]
    lines += [f"{f.file:{width}}  {len(f.builds):6}  {len(f.cells):5}  {_base_image(f)}" for f in builds]
    lines += ["", f"{'runtime image of a cell':{width}}                 base image"]
    lines += [f"{f.file:{width}}                 {_base_image(f)}" for f in runtimes]
    lines += ["", f"wrote Dockerfiles of {len(builds)} build images and {len(runtimes)} runtime images to {folder}"]
    if bases := unpinned(files):
        lines += ["", f"base images without a digest ({len(bases)}); `buildfarm render --lock` pins them:"]
        lines += [f"  {base}" for base in bases]
    return "\n".join(lines) + "\n"


def render_json(folder: Path, files: Sequence[Dockerfile]) -> str:
    """Each image with its Dockerfile, its tag, its base images, and the builds and cells that use it."""
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


def _base_image(file: Dockerfile) -> str:
    """The base image of the last stage; instead of its digest only `(pinned)`."""
    base, at, _ = file.base.partition("@")
    return f"{base} (pinned)" if at else base
