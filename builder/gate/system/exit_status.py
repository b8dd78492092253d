"""Describes how a process ended: signal or exit status, exceeded limit, message of the C library, last step."""

from __future__ import annotations

import os
import re
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.gate.system.files import read_regular

#: Messages of glibc's allocator when its own data is overwritten.
_HEAP = re.compile(
    r"(free\(\): [\w ,()+/-]+|double free or corruption[^\n]*|malloc(?:_consolidate)?\(\): [\w ,()+/-]+"
    r"|realloc\(\): [\w ,()+/-]+|corrupted (?:size vs\. prev_size|double-linked list)[^\n]*"
    r"|munmap_chunk\(\): [\w ,()]+)"
)
_TERMINATE = re.compile(r"terminate called after throwing an instance of '([^']+)'(?:\s+what\(\):\s*([^\n]*))?")
#: A frame of a Python stack as faulthandler writes it.
PYTHON_FRAME = re.compile(r'File "([^"]+)", line (\d+) in (\S+)')
_TAIL = 4000

#: The exit status of a check that could not write its results.
NO_RESULTS = 120
#: By limit, with the limit as text.
_EXCEEDED = {
    "time": "does not end within {}: it loops or deadlocks, or the inputs are too large",
    "memory": "uses more than {} of memory, the limit of a case: allocate less, or use smaller inputs",
    "processes": "has more than {} processes at the same time: start fewer, and wait for each",
    "output": "prints more than {}: remove the output",
    "stopped": "is stopped by a signal such as SIGSTOP: remove the code that sends it",
}
_PLAIN = {
    "SIGSEGV": "a segmentation fault",
    "SIGBUS": "a bus error",
    "SIGILL": "an instruction that this CPU does not support",
    "SIGFPE": "an integer division by zero or overflow",
    "SIGABRT": "abort()",
    "SIGXFSZ": "it writes a larger file than allowed",
    "SIGKILL": "killed by the kernel when memory ran out, or by a different process",
}


@dataclass(frozen=True)
class ProcessExit:
    """How one process ended."""

    #: Wait status of `os.waitpid`.
    status: int
    #: The limit it was killed for: "", "time", "memory", "processes", "output" or "stopped".
    limit: str = ""
    #: That limit as text: "60 s", "4.0 GiB".
    allowed: str = ""
    #: The step it began last.
    step: str = ""
    log: str = ""
    #: The Python stack, followed by the native one.
    stack: str = ""
    #: The native function that crashed, as text.
    frame: str = ""

    def sentence(self) -> str:
        """Return a sentence without a full stop, to follow the name of an op or an import."""
        if self.limit:
            what = _EXCEEDED[self.limit].format(self.allowed)
        elif os.WIFSIGNALED(self.status):
            what = self._signal(signal_name(os.WTERMSIG(self.status)))
        elif os.WEXITSTATUS(self.status) == NO_RESULTS:
            what = (
                "leaves the check without files: it uses up the open files, deletes files of others, or fills the disk"
            )
        else:
            what = f"calls exit({os.WEXITSTATUS(self.status)}): remove this call"
        return what + (f" (step: {self.step})" if self.step else "")

    def _signal(self, name: str) -> str:
        heap = _HEAP.search(self.log)
        if name == "SIGABRT" and heap:
            return (
                f"writes outside an allocation, or frees memory twice: glibc aborts with '{heap.group(1).strip()}'; "
                "look for an index out of range"
            )
        thrown = _TERMINATE.search(self.log)
        if name == "SIGABRT" and thrown:
            what = f" ({thrown.group(2).strip()})" if thrown.group(2) else ""
            if "bad_alloc" in thrown.group(1):
                return f"allocates more memory than allowed and does not catch {thrown.group(1)}{what}"
            return f"dies of an uncaught C++ exception: {thrown.group(1)}{what}"
        plain = _PLAIN.get(name)
        return f"dies with {name}" + (f" ({plain})" if plain else "") + (f" in {self.frame}" if self.frame else "")

    def evidence(self) -> dict[str, Any]:
        """Return the details as JSON data."""
        frame = PYTHON_FRAME.search(self.stack)
        found: dict[str, Any] = {"exit": os.WEXITSTATUS(self.status)}
        if os.WIFSIGNALED(self.status):
            found = {"signal": signal_name(os.WTERMSIG(self.status))}
        more = {
            "limit": self.limit,
            "step": self.step,
            "stack": self.stack[-2 * _TAIL :] if self.stack.strip() else "",
            "frame": f"{frame[1]}:{frame[2]} in {frame[3]}" if frame else "",
            "printed": self.log[-_TAIL:] if self.log.strip() else "",
        }
        return {**found, **{key: value for key, value in more.items() if value}}


def signal_name(number: int) -> str:
    """Return the name of a signal: SIGSEGV for 11."""
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal has no name
        return f"signal {number}"


def tail(path: Path, size: int = _TAIL) -> str:
    """Return the last `size` bytes of a file as text; "" if it cannot be read. The file may be large or binary."""
    try:
        return read_regular(path, size, end=True).decode("utf-8", "replace")
    except OSError:
        return ""
