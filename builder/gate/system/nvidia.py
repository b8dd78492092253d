"""NVIDIA's programs: queries GPUs with nvidia-smi; finds and runs compute-sanitizer and parses its report.

Standard library only. A missing program is a result, not an error.
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

#: Device files that the driver creates: on Linux, and under WSL.
NODES = (Path("/dev/nvidiactl"), Path("/dev/dxg"))

#: Exit status of compute-sanitizer when it found an error; torch and Python do not use this number.
FOUND = 86
_SUMMARY = re.compile(r"ERROR SUMMARY: (\d+) error")
_PREFIX = re.compile(r"^=+ ?")
#: First lines of a block that are not findings: banners, and messages about the program itself.
_NO_FINDING = re.compile(
    r"COMPUTE-SANITIZER|ERROR SUMMARY|LEAK SUMMARY|RACECHECK SUMMARY|Target application|Warning|Error: process"
)


def smi(query: Sequence[str] = _QUERY) -> list[dict[str, str]]:
    """Return the queried facts of each GPU by name; empty if nvidia-smi is missing, fails or hangs (20 s)."""
    argv = ["nvidia-smi", f"--query-gpu={','.join(query)}", "--format=csv,noheader,nounits"]
    try:
        run = subprocess.run(argv, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return smi_rows(run.stdout, query) if run.returncode == 0 else []


def smi_rows(text: str, query: Sequence[str] = _QUERY) -> list[dict[str, str]]:
    """Parse its CSV, a line for each GPU; values such as "[N/A]" and "[Not Supported]" are omitted."""
    rows = []
    for line in text.splitlines():
        values = [value.strip() for value in line.split(",")]
        if len(values) == len(query):
            named = dict(zip(query, values))
            rows.append({key: value for key, value in named.items() if value and not value.startswith("[")})
    return rows


def row_of(rows: Sequence[Mapping[str, str]], number: int, name: str, uuid: str) -> Mapping[str, str]:
    """Return the row of torch's GPU `number`: by uuid if torch knows it, else by number if the names agree.

    With CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER torch may number GPUs differently from nvidia-smi.
    """
    for row in rows:
        if uuid and row.get("uuid", "").removeprefix("GPU-") == uuid.removeprefix("GPU-"):
            return row
    named = [row for row in rows if row.get("name") == name]
    if len(named) == len(rows) and number < len(rows):
        return named[number]
    return named[0] if len(named) == 1 else {}


def gpu_facts(name: str, capability: tuple[int, int], memory: int, row: Mapping[str, str]) -> dict[str, str]:
    """Return a GPU's entry for `Answer.where`: name, sm and `memory` (bytes) from torch, the rest from nvidia-smi."""
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
    """Return why torch has no GPU: a CPU build, a driver that does not suit torch, or no GPU at all.

    Args:
        built_for: `torch.version.cuda`.
        error: the error of torch when it counts the GPUs, or "".
        rows: the result of `smi`.

    """
    if built_for is None:
        gpu = f"the {rows[0].get('name', 'GPU')} that nvidia-smi finds" if rows else "a GPU"
        return f"this torch is a CPU build, which cannot use {gpu}"
    if rows:
        driver = rows[0].get("driver_version", "unknown")
        cause = f": {error}" if error else "; check CUDA_VISIBLE_DEVICES"
        gpu = rows[0].get("name", "a GPU")
        return f"nvidia-smi finds {gpu} (driver {driver}), but torch (CUDA {built_for}) does not{cause}"
    return "no GPU on this machine"


def find_sanitizer(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return compute-sanitizer on PATH, in CUDA_HOME, CUDA_PATH or /usr/local/cuda; None if it is not there."""
    homes = [environment.get("CUDA_HOME"), environment.get("CUDA_PATH"), "/usr/local/cuda"]
    folders = [environment.get("PATH", os.defpath)]
    folders += [str(Path(home, below)) for home in homes if home for below in ("bin", "compute-sanitizer")]
    return shutil.which("compute-sanitizer", path=os.pathsep.join(folders))


def sanitizer_command(sanitizer: str, program: Sequence[str]) -> list[str]:
    """Return the command for memcheck. API errors are not reported, because torch makes calls that may fail."""
    options = ["--tool", "memcheck", "--report-api-errors", "no", "--error-exitcode", str(FOUND), "--print-limit", "5"]
    return [sanitizer, *options, *program]


@dataclass(frozen=True)
class Sanitized:
    """A report of compute-sanitizer."""

    #: The number of errors, or None if the report is incomplete.
    errors: int | None
    #: Each in one line: error, kernel, thread.
    findings: list[str] = field(default_factory=list)


def read_sanitizer(text: str) -> Sanitized:
    """Parse its report, which is mixed with the output of the program."""
    summary = _SUMMARY.findall(text)
    findings: list[str] = []
    details = 0
    for line in text.splitlines():
        if not line.startswith("====="):
            continue
        message = _PREFIX.sub("", line).rstrip()
        if not message.strip() or _NO_FINDING.search(message):
            details = 0
        elif not message.startswith(" "):
            findings.append(message.strip())
            details = 3  # location, thread and address; the stack below them stays in the evidence
        elif details and findings:
            findings[-1] += f" {message.strip()}"
            details -= 1
    return Sanitized(int(summary[-1]) if summary else None, findings)
