"""NVIDIA's programs: what nvidia-smi says of the GPUs, and how compute-sanitizer is found, called and read.

Standard library only; a program that is not there is an answer, not an error.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_QUERY = ("index", "uuid", "name", "driver_version", "clocks.sm", "clocks.max.sm", "clocks.mem", "power.limit")
_SECONDS = 20.0

#: The status compute-sanitizer ends with when it found something; torch and Python use no such number.
FOUND = 86
_SUMMARY = re.compile(r"ERROR SUMMARY: (\d+) error")
_PREFIX = re.compile(r"^=+ ?")
#: Lines at the start of a block that are no finding: banners, and what the sanitizer says of the program itself.
_NO_FINDING = re.compile(
    r"COMPUTE-SANITIZER|ERROR SUMMARY|LEAK SUMMARY|RACECHECK SUMMARY|Target application|Warning|Error: process"
)


def smi() -> list[dict[str, str]]:
    """What nvidia-smi tells of each GPU, or nothing where it is missing, fails or hangs."""
    argv = ["nvidia-smi", f"--query-gpu={','.join(_QUERY)}", "--format=csv,noheader,nounits"]
    try:
        run = subprocess.run(argv, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return smi_rows(run.stdout) if run.returncode == 0 else []


def smi_rows(text: str) -> list[dict[str, str]]:
    """Its CSV, a GPU a line, as dicts; what a GPU does not tell ("[N/A]", "[Not Supported]") is left out."""
    rows = []
    for line in text.splitlines():
        values = [value.strip() for value in line.split(",")]
        if len(values) == len(_QUERY):
            named = dict(zip(_QUERY, values))
            rows.append({key: value for key, value in named.items() if value and not value.startswith("[")})
    return rows


def row_of(rows: Sequence[Mapping[str, str]], number: int, name: str, uuid: str) -> Mapping[str, str]:
    """The row of torch's GPU `number`: by uuid where torch tells it, else by number if the name there is the same.

    CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER may number GPUs otherwise than nvidia-smi does.
    """
    for row in rows:
        if uuid and row.get("uuid", "").removeprefix("GPU-") == uuid.removeprefix("GPU-"):
            return row
    named = [row for row in rows if row.get("name") == name]
    if len(named) == len(rows) and number < len(rows):
        return named[number]
    return named[0] if len(named) == 1 else {}


def gpu_facts(name: str, capability: tuple[int, int], memory: int, row: Mapping[str, str]) -> dict[str, str]:
    """One GPU for `Answer.where`: name and sm from torch, driver and clocks from nvidia-smi."""
    facts = {"name": name, "sm": f"sm_{capability[0]}{capability[1]}", "memory": f"{memory / 2**30:.0f} GiB"}
    if "driver_version" in row:
        facts["driver"] = row["driver_version"]
    if "clocks.sm" in row:
        most = f" of {row['clocks.max.sm']}" if "clocks.max.sm" in row else ""
        facts["clock"] = f"{row['clocks.sm']}{most} MHz"
    if "clocks.mem" in row:
        facts["memory clock"] = f"{row['clocks.mem']} MHz"
    if "power.limit" in row:
        facts["power limit"] = f"{row['power.limit']} W"
    return facts


def why_no_gpu(built_for: str | None, error: str, rows: Sequence[Mapping[str, str]]) -> str:
    """Why torch has no GPU: it was built without CUDA, or the driver and torch do not meet, or there is none.

    Args:
        built_for: `torch.version.cuda`.
        error: what torch says when asked for the number of GPUs, or nothing.
        rows: of `smi`.

    """
    if built_for is None:
        seen = f", and nvidia-smi sees {rows[0].get('name', 'a GPU')}" if rows else ""
        return f"torch here is a CPU build{seen}"
    if rows:
        driver = rows[0].get("driver_version", "unknown")
        said = f": {error}" if error else "; is CUDA_VISIBLE_DEVICES set?"
        return (
            f"nvidia-smi sees {rows[0].get('name', 'a GPU')} (driver {driver}), torch (CUDA {built_for}) does not{said}"
        )
    return "no GPU on this machine"


def find_sanitizer(environment: Mapping[str, str] = os.environ) -> str | None:
    """compute-sanitizer on the PATH, in CUDA_HOME or where NVIDIA's installer puts it."""
    homes = [environment.get("CUDA_HOME"), environment.get("CUDA_PATH"), "/usr/local/cuda"]
    folders = [environment.get("PATH", os.defpath)]
    folders += [str(Path(home, below)) for home in homes if home for below in ("bin", "compute-sanitizer")]
    return shutil.which("compute-sanitizer", path=os.pathsep.join(folders))


def sanitizer_command(sanitizer: str, program: Sequence[str]) -> list[str]:
    """Run a program under memcheck. Errors of API calls are left out: torch asks questions whose answer is an error."""
    options = ["--tool", "memcheck", "--report-api-errors", "no", "--error-exitcode", str(FOUND), "--print-limit", "5"]
    return [sanitizer, *options, *program]


@dataclass(frozen=True)
class Sanitized:
    """What compute-sanitizer said.

    Attributes:
        errors: their number, or None if it came to no end.
        findings: each in a line: what, in which kernel, by which thread.

    """

    errors: int | None
    findings: list[str] = field(default_factory=list)


def read_sanitizer(text: str) -> Sanitized:
    """Its report, mixed with whatever the program printed."""
    summary = _SUMMARY.findall(text)
    findings: list[str] = []
    details = 0
    for line in text.splitlines():
        if not line.startswith("====="):
            continue
        said = _PREFIX.sub("", line).rstrip()
        if not said.strip() or _NO_FINDING.search(said):
            details = 0
        elif not said.startswith(" "):
            findings.append(said.strip())
            details = 3  # at which place, by which thread, at which address; the stack below is for the evidence
        elif details and findings:
            findings[-1] += f" {said.strip()}"
            details -= 1
    return Sanitized(int(summary[-1]) if summary else None, findings)
