"""The plan as JSON: the same plan gives the same bytes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from builder.matrix.plan import Build, Plan, Skip

_SCHEMA = 1


def plan_to_json(plan: Plan) -> str:
    """Return the plan as JSON text with a final newline, one line for each build and each skip."""
    builds = _lines(_build_to_json(build) for build in plan.builds)
    skips = _lines(_skip_to_json(skip) for skip in plan.skips)
    return f'{{"schema": {_SCHEMA},\n"builds": [{builds}],\n"skips": [{skips}]}}\n'


def _lines(items: Iterable[dict[str, Any]]) -> str:
    """Return the inside of a JSON list, one line for each item, so that `diff` shows which item changed."""
    encode = json.JSONEncoder(ensure_ascii=False).encode
    return ",".join("\n" + encode(item) for item in items)


def _build_to_json(build: Build) -> dict[str, Any]:
    return {
        "name": str(build),
        "extension": build.extension,
        **({"project": build.project} if build.project else {}),
        "version": build.version,
        "abi": str(build.abi),
        "torch": str(build.torch),
        "cuda": str(build.cuda),
        "pythons": [str(python) for python in build.pythons],
        "archs": [str(arch) for arch in build.archs],
        "platform": str(build.platform),
        "serves": [str(cell) for cell in build.serves],
    }


def _skip_to_json(skip: Skip) -> dict[str, Any]:
    return {
        "torch": str(skip.torch),
        "cuda": str(skip.cuda),
        "python": str(skip.python),
        "platform": str(skip.platform),
        "extension": skip.extension,
        "code": skip.code,
        "reason": skip.reason,
    }
