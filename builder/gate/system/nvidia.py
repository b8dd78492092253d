"""GPUs of this machine: NVIDIA's programs, the device files of the driver, and how to hide GPUs from torch.

Queries GPUs with nvidia-smi; finds and runs compute-sanitizer and parses its report. Standard library only. A missing
program is a result, not an error.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

_QUERY = ("name", "driver_version", "compute_mode")
_SECONDS = 20.0
#: Exit status of nvidia-smi if the infoROM of a GPU is corrupted (its manual): the output is complete.
_WORN = 14

#: The fact of `where` that `most_processes` returns.
PROCESSES = "processes of a GPU"
#: GPU memory of a process that calls an op on small inputs: a context of CUDA with torch's kernels takes half of it.
_BYTES_OF_PROCESS = 1 << 30

#: Device files that the driver creates: on Linux, and under WSL.
NODES = (Path("/dev/nvidiactl"), Path("/dev/dxg"))

#: Exit status of compute-sanitizer when it found an error; torch and Python do not use this number.
_FOUND = 86
#: Bytes behind each allocation that no kernel may touch.
_PADDING = 1024
_SUMMARY = re.compile(r"ERROR SUMMARY: (\d+) error")
_PREFIX = re.compile(r"^=+ ?")
#: First lines of a block about compute-sanitizer itself. Its manual: "Errors might go undetected".
_OWN_ERROR = re.compile(r"Internal Sanitizer Error|Device not supported|unsupported driver version", re.IGNORECASE)
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
    return smi_rows(run.stdout, query) if run.returncode in (0, _WORN) else []


def smi_rows(text: str, query: Sequence[str] = _QUERY) -> list[dict[str, str]]:
    """Parse its CSV, a line for each GPU; values such as "[N/A]" and "[Not Supported]" are omitted."""
    lines = [[value.strip() for value in line.split(",")] for line in text.splitlines()]
    rows = [zip(query, values) for values in lines if len(values) == len(query)]
    return [{key: value for key, value in row if value and not value.startswith("[")} for row in rows]


def most_processes(free: int, rows: Sequence[Mapping[str, str]]) -> int:
    """Return how many processes may use a GPU at the same time that has so many bytes of free memory.

    In an exclusive compute mode, CUDA refuses a second process: "all CUDA-capable devices are busy or unavailable".
    """
    exclusive = any(row.get("compute_mode", "Default") != "Default" for row in rows)
    return 1 if exclusive else max(1, free // _BYTES_OF_PROCESS)


def why_no_gpu(built_for: str | None, error: str, rows: Sequence[Mapping[str, str]]) -> str:
    """Return why torch has no GPU: a CPU build, a driver that does not suit torch, or no GPU at all.

    `built_for` is `torch.version.cuda`, `error` that of torch when it counts the GPUs, `rows` the result of `smi`.
    """
    if built_for is None:
        gpu = f"the {rows[0].get('name', 'GPU')} that nvidia-smi finds" if rows else "a GPU"
        return f"this torch is a CPU build, which cannot use {gpu}"
    if not rows:
        return "no GPU on this machine"
    gpu = f"{rows[0].get('name', 'a GPU')} (driver {rows[0].get('driver_version', 'unknown')})"
    cause = f": {error}" if error else "; check CUDA_VISIBLE_DEVICES"
    return f"nvidia-smi finds {gpu}, but torch (CUDA {built_for}) does not{cause}"


def sanitizer_command(program: Sequence[str], environment: Mapping[str, str] = os.environ) -> list[str] | None:
    """Return the command for memcheck of a program; None if compute-sanitizer is not installed.

    It is on PATH, in CUDA_HOME, CUDA_PATH or /usr/local/cuda. API errors are not reported, because torch makes calls
    that may fail. Without padding, allocations can be adjacent, and an access behind one is inside the next (its
    manual, "Padding").
    """
    homes = [environment.get("CUDA_HOME"), environment.get("CUDA_PATH"), "/usr/local/cuda"]
    folders = [environment.get("PATH", os.defpath)]
    folders += [str(Path(home, below)) for home in homes if home for below in ("bin", "compute-sanitizer")]
    sanitizer = shutil.which("compute-sanitizer", path=os.pathsep.join(folders))
    options = ["--tool", "memcheck", "--report-api-errors", "no", "--error-exitcode", str(_FOUND), "--print-limit", "5"]
    return [sanitizer, *options, "--padding", str(_PADDING), *program] if sanitizer else None


class Sanitized(NamedTuple):
    """A report of compute-sanitizer."""

    #: The number of errors, or None if the report is incomplete.
    errors: int | None
    #: Each in one line: error, kernel, thread.
    findings: list[str]
    #: Why compute-sanitizer could not do its work, or "".
    own_error: str


def read_sanitizer(text: str) -> Sanitized:
    """Parse its report, which is mixed with the output of the program."""
    summary = _SUMMARY.findall(text)
    findings: list[str] = []
    own_error = ""
    details = 0
    for line in text.splitlines():
        if not line.startswith("====="):
            continue
        message = _PREFIX.sub("", line).rstrip()
        if _OWN_ERROR.search(message):
            own_error, details = own_error or message.strip(), 0
        elif not message.strip() or _NO_FINDING.search(message):
            details = 0
        elif not message.startswith(" "):
            findings.append(message.strip())
            details = 3  # location, thread and address; the stack below them stays in the evidence
        elif details and findings:
            findings[-1] += f" {message.strip()}"
            details -= 1
    return Sanitized(int(summary[-1]) if summary else None, findings, own_error)


#: Hides the GPUs of the machine from torch, which otherwise initialises CUDA in unexpected places.
#:
#: A process that has initialised CUDA cannot use it in its forks. torch initialises CUDA whenever it compiles, even
#: for the CPU: dynamo reads the state of CUDA's random numbers, and looks for a GPU that Triton supports. CUDA also
#: reserves terabytes of address space, so it does not start under a limit of memory.
#:
#: The variable takes effect until the driver is initialised. A process that has entered torch's FakeTensorMode
#: without a visible GPU does not find one later: torch then stores that there is none.
_VARIABLE = "CUDA_VISIBLE_DEVICES"
#: No GPU. The gate's messages then say that the gate hides the GPUs; "" is the choice of a user.
_NONE = "-1"
#: Device files of a GPU: those of the usual driver, and those of Jetson.
_DEVICES = (*NODES, Path("/dev/nvhost-gpu"), Path("/dev/nvgpu"))


def may_have_gpu() -> bool:
    """Whether this machine may have a visible NVIDIA GPU; initialises nothing, so CUDA may refuse a GPU of `True`."""
    if os.environ.get(_VARIABLE) in ("", _NONE):
        return False
    if any(device.exists() for device in _DEVICES):
        return True
    count = ctypes.c_uint(0)
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        return not nvml.nvmlInit_v2() and not nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) and count.value > 0
    except (OSError, AttributeError):
        return False


@contextmanager
def hidden_gpus() -> Iterator[None]:
    """Hide the GPUs inside; afterwards torch finds them again."""
    before = os.environ.get(_VARIABLE)
    os.environ[_VARIABLE] = _NONE
    _forget()
    try:
        yield
    finally:
        os.environ.pop(_VARIABLE, None)
        if before is not None:
            os.environ[_VARIABLE] = before
        _forget()


def hide_gpus() -> None:
    """Hide the GPUs, if there may be some, from this process and its children."""
    if may_have_gpu():
        os.environ[_VARIABLE] = _NONE
        _forget()


def _forget() -> None:
    """Make torch look for GPUs again: it stores how many there are, and what can use them."""
    for module in ("torch.cuda", "torch.utils._triton", "torch._inductor.utils"):
        for function in list(vars(sys.modules[module]).values()) if module in sys.modules else []:
            if hasattr(function, "cache_clear"):
                function.cache_clear()
    for module, name, value in (
        ("torch.cuda", "_cached_device_count", None),
        ("torch._dynamo.device_interface", "_device_initialized", False),
    ):
        if name in vars(sys.modules.get(module, sys)):
            vars(sys.modules[module])[name] = value
