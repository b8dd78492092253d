"""How long the compilers worked for each GPU architecture, from sccache's log or from the table that nvcc wrote."""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from pathlib import Path

from builder.wheels.sccache.launchers.self_test import SOURCE_NAME as SELF_TEST

#: The steps of nvcc for one architecture: cicc writes PTX (`k.compute_90.ptx`), ptxas machine code (`k.sm_90.cubin`).
_BEGIN = re.compile(
    r"\[(?P<name>[^\]]+\.(?:ptx|cubin))\]: get_cached_or_compile: .*?\"-arch(?:=|\", \")(?P<code>\w+)\""
)
_DONE = re.compile(r"\[(?P<name>[^\]]+\.(?:ptx|cubin))\]: Compiled in (?P<seconds>[\d.]+) s")
_CODE = re.compile(r"(?:sm|compute)_(\d+)(\d[af]?)")

#: The columns of nvcc's table (`--time`) that are read.
_PHASE, _ARCH, _TIME, _UNIT = 1, 4, 6, 7
_COLUMNS = 8
#: Phases that compile for the host once, whatever architecture the table gives them.
_FOR_HOST = {"cudafe++", "gcc (compiling)"}


def read_gpu_seconds(statistics_dir: Path) -> dict[str, float]:
    """Seconds by architecture (`9.0`, `9.0a`), sorted; empty when nothing was logged.

    Steps whose result was in the compiler cache took no time.
    """
    seconds: defaultdict[str, float] = defaultdict(float)
    _add_from_sccache(_read(statistics_dir / "server.log"), seconds)
    _add_from_nvcc(_read(statistics_dir / "nvcc.csv"), seconds)
    order = sorted(seconds, key=lambda arch: (float(arch.rstrip("af")), arch))
    return {arch: round(seconds[arch], 1) for arch in order}


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""


def _add_from_sccache(text: str, seconds: defaultdict[str, float]) -> None:
    codes: dict[str, str] = {}
    for line in text.splitlines():
        begin = _BEGIN.search(line)
        if begin and not begin["name"].startswith(SELF_TEST):
            codes[begin["name"]] = begin["code"]
        elif done := _DONE.search(line):
            _add(codes.get(done["name"], ""), float(done["seconds"]), seconds)


def _add_from_nvcc(text: str, seconds: defaultdict[str, float]) -> None:
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        cells = [cell.strip() for cell in row]
        # Calls of nvcc at the same time append to one file; a row that another one cut is skipped.
        complete = len(cells) == _COLUMNS and cells[_UNIT] == "ms" and re.fullmatch(r"\d+\.\d+", cells[_TIME])
        if complete and cells[_PHASE] not in _FOR_HOST:
            _add(cells[_ARCH], float(cells[_TIME]) / 1000, seconds)


def _add(code: str, amount: float, seconds: defaultdict[str, float]) -> None:
    if match := _CODE.fullmatch(code):
        seconds[f"{match[1]}.{match[2]}"] += amount
