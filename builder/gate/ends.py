"""How the end of a process is told: the signal, the limit it ran into, what the C library said, where it was."""

from __future__ import annotations

import os
import re
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: What glibc's allocator says when it finds its own data overwritten.
_HEAP = re.compile(
    r"(free\(\): [\w ,()+/-]+|double free or corruption[^\n]*|malloc(?:_consolidate)?\(\): [\w ,()+/-]+"
    r"|realloc\(\): [\w ,()+/-]+|corrupted (?:size vs\. prev_size|double-linked list)[^\n]*"
    r"|munmap_chunk\(\): [\w ,()]+)"
)
_TERMINATE = re.compile(r"terminate called after throwing an instance of '([^']+)'(?:\s+what\(\):\s*([^\n]*))?")
_FRAME = re.compile(r'File "([^"]+)", line (\d+) in (\S+)')
_TAIL = 4000

_PLAIN = {
    "SIGSEGV": "a segmentation fault",
    "SIGBUS": "a bus error",
    "SIGILL": "an instruction this CPU has not",
    "SIGFPE": "an integer division by zero or overflow",
    "SIGABRT": "abort()",
    "SIGKILL": "killed by the kernel where memory ran out, or by another process",
}


@dataclass(frozen=True)
class End:
    """The end of one process.

    Attributes:
        status: as `os.waitpid` gives it.
        limit: what it was killed for: "", "time", "memory" or "output".
        allowed: the limit it ran into, in words: "60 s", "4.0 GiB".
        doing: what it did last.
        log: the last of what it printed.
        stack: the Python stack, and the native one behind it.
        frame: the native function to blame, in words.

    """

    status: int
    limit: str = ""
    allowed: str = ""
    doing: str = ""
    log: str = ""
    stack: str = ""
    frame: str = ""

    def sentence(self) -> str:
        """One sentence without a full stop, to follow the name of the op or of an import."""
        return self._what() + (f", at: {self.doing}" if self.doing else "")

    def _what(self) -> str:
        if self.limit == "time":
            return f"does not end within {self.allowed}: an endless loop, a deadlock, or inputs too large for a case"
        if self.limit == "memory":
            return (
                f"takes more memory than the {self.allowed} allowed: bound what it allocates, or make the case smaller"
            )
        if self.limit == "output":
            return f"prints more than {self.allowed}: remove the printing"
        if os.WIFSIGNALED(self.status):
            return self._signal(signal_name(os.WTERMSIG(self.status)))
        code = os.WEXITSTATUS(self.status)
        return f"ends the process with exit status {code}: it calls exit()"

    def _signal(self, name: str) -> str:
        heap = _HEAP.search(self.log)
        if name == "SIGABRT" and heap:
            return (
                f"writes outside an allocation, or frees it twice: glibc stops it with '{heap.group(1).strip()}'; "
                "look for an index past an end"
            )
        thrown = _TERMINATE.search(self.log)
        if name == "SIGABRT" and thrown:
            what = f" ({thrown.group(2).strip()})" if thrown.group(2) else ""
            if "bad_alloc" in thrown.group(1):
                return f"asks for more memory than allowed: {thrown.group(1)}{what} is thrown and caught by nobody"
            return f"dies of a C++ exception that nobody catches: {thrown.group(1)}{what}"
        plain = _PLAIN.get(name)
        return f"dies with {name}" + (f" ({plain})" if plain else "") + (f" in {self.frame}" if self.frame else "")

    def evidence(self) -> dict[str, Any]:
        """For programs, and for a person who wants to know more."""
        found: dict[str, Any] = {}
        if os.WIFSIGNALED(self.status):
            found["signal"] = signal_name(os.WTERMSIG(self.status))
        else:
            found["exit"] = os.WEXITSTATUS(self.status)
        if self.limit:
            found["limit"] = self.limit
        if self.doing:
            found["doing"] = self.doing
        if self.stack.strip():
            found["stack"] = self.stack[-2 * _TAIL :]
        frame = _FRAME.search(self.stack)
        if frame:
            found["frame"] = f"{frame.group(1)}:{frame.group(2)} in {frame.group(3)}"
        if self.log.strip():
            found["printed"] = self.log[-_TAIL:]
        return found


def signal_name(number: int) -> str:
    """SIGSEGV for 11."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def tail(path: Path, size: int = _TAIL) -> str:
    """The last characters of a file, which may be large, binary, or not there."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - size))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def amount(number: float) -> str:
    """Bytes in words a person reads: 107374182400 is "100.0 GiB"."""
    for unit in ("bytes", "KiB", "MiB"):
        if number < 1024:
            return f"{number:.0f} {unit}"
        number /= 1024
    return f"{number:.1f} GiB"
