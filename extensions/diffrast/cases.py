"""What the op gate calls: each operator forward and backward, case by case from `references/`."""

from __future__ import annotations

from builder.gate import Case
from references import cases_antialias, cases_interpolate, cases_rasterize, cases_texture

CASES: list[Case] = [
    *cases_rasterize.CASES,
    *cases_interpolate.CASES,
    *cases_texture.CASES,
    *cases_antialias.CASES,
]
