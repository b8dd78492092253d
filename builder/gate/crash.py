"""Python and native stacks at a fatal signal, without a debugger, and how they are read back.

`watch_crashes` puts two handlers one behind the other: faulthandler writes the Python stack and raises the signal
again, then ours has glibc's `backtrace` write the native one. That needs no torch, so it also watches what comes before
torch is imported, which torch's own `_set_print_stack_traces_on_fatal_signal` cannot.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import re
import signal
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from builder.gate.ends import End

_FATAL = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)
_HEADING = "Native stack (innermost first):"
_DEPTH = 96
#: A crash inside malloc may hold malloc's lock, and then our own handler never ends: it gets this long.
_SECONDS = 10
#: Of the thread that called `watch_crashes`: a stack that has run over leaves no room for a handler.
_ROOM = 1 << 20

_FRAME = re.compile(r"^(?P<library>.+?)(?:\((?P<symbol>[^()+]*)(?:\+(?P<offset>0x[0-9a-f]+))?\))? ?\[0x[0-9a-f]+\]$")
_FATAL_LINE = re.compile(r"^Fatal Python error: (Segmentation fault|Aborted|Bus error|Floating|Illegal)", re.MULTILINE)
_SIGNALS = {
    "Segmentation fault": signal.SIGSEGV,
    "Aborted": signal.SIGABRT,
    "Bus error": signal.SIGBUS,
    "Floating": signal.SIGFPE,
    "Illegal": signal.SIGILL,
}
_PYTHON_FRAME = re.compile(r'File "([^"]+)", line (\d+) in (\S+)')
#: Where a fault shows though another library made it.
_RUNTIME = re.compile(r"^(libc|libpthread|libm|libstdc\+\+|libgcc_s|linux-vdso|ld-linux[\w-]*|libc_malloc\w+)[.-]")

#: Handlers, and the stack they run on, live as long as the process.
_KEPT: list[Any] = []


class _SignalStack(ctypes.Structure):
    _fields_ = (("pointer", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


@dataclass(frozen=True)
class Frame:
    """One frame of a native stack: the file it lies in and, where the file names it, the function."""

    library: str
    symbol: str
    offset: str

    def __str__(self) -> str:
        name = PurePath(self.library).name
        return f"{demangled(self.symbol)} of {name}" if self.symbol else f"{self.offset or '?'} of {name}"


def watch_crashes(fd: int = 2) -> None:
    """From now on a fatal signal writes the Python and the native stack to `fd`, then kills as it would have.

    Call it in the main thread; `fd` must stay open. Without glibc there is only the Python stack. The native stack is
    written by Python code: a fault in a foreign thread while another one holds the interpreter's lock waits for that
    one, for ever if it joins the first, so the process needs a time limit. The Python stack is written before that.
    """
    faulthandler.disable()  # the handler set last is called first: faulthandler must come after ours
    with contextlib.suppress(AttributeError, OSError):
        _write_native_stack(fd)
    faulthandler.enable(fd)
    if _KEPT:
        room = ctypes.create_string_buffer(_ROOM)
        stack = _SignalStack(ctypes.addressof(room), 0, _ROOM)
        ctypes.PyDLL(None).sigaltstack(ctypes.byref(stack), None)
        _KEPT.append(room)


def _write_native_stack(fd: int) -> None:
    libc = ctypes.PyDLL(None)  # PyDLL: the lock is not let go, so no other thread's Python runs meanwhile
    libc.signal.restype, libc.signal.argtypes = ctypes.c_void_p, (ctypes.c_int, ctypes.c_void_p)
    frames = (ctypes.c_void_p * _DEPTH)()
    backtrace, symbols, write = libc.backtrace, libc.backtrace_symbols_fd, libc.write
    restore, alarm = libc.signal, libc.alarm
    heading = f"\n{_HEADING}\n".encode()
    alarmed, aborted, size = int(signal.SIGALRM), int(signal.SIGABRT), len(heading)
    backtrace(frames, _DEPTH)  # the first call loads libgcc_s: not to be done in a handler

    def handle(number: int) -> None:
        restore(alarmed, None)
        alarm(_SECONDS)
        restore(number, None)  # the default action, which the signal's return then takes
        depth = backtrace(frames, _DEPTH)
        if number == aborted:
            # These are return addresses, and a call to abort() or throw may be the last thing in its function: the
            # address behind it is the next function's. At a fault the innermost address is exact: left alone.
            for index in range(depth):
                frames[index] = (frames[index] or 1) - 1
        write(fd, heading, size)
        symbols(frames, depth, fd)

    handler = ctypes.PYFUNCTYPE(None, ctypes.c_int)(handle)
    for number in _FATAL:
        restore(number, ctypes.cast(handler, ctypes.c_void_p))
    _KEPT.extend((handler, frames, heading))


def native_stack(stderr: str) -> list[Frame]:
    """The frames `watch_crashes` had written, from the faulting one outwards; empty if it wrote none."""
    _, found, text = stderr.rpartition(_HEADING)
    frames: list[Frame] = []
    for line in text.strip().splitlines() if found else ():
        match = _FRAME.match(line.strip())
        if match is None:
            break
        frames.append(Frame(match["library"], match["symbol"] or "", match["offset"] or ""))
    # Our own frames end at the C library's trampoline; faulthandler's second signal is behind another one.
    trampoline = next((frame for frame in frames if _is_libc(frame) and "backtrace" not in frame.symbol), None)
    if trampoline is None:
        return frames
    return frames[len(frames) - frames[::-1].index(trampoline) :]


def _is_libc(frame: Frame) -> bool:
    return PurePath(frame.library).name.startswith(("libc.so", "libc-", "libpthread"))


def guilty(stderr: str) -> Frame | None:
    """The innermost native frame outside the C and C++ runtimes, which only show other libraries' faults."""
    frames = native_stack(stderr)
    own = (frame for frame in frames if not _RUNTIME.match(PurePath(frame.library).name))
    return next(own, frames[0] if frames else None)


def fatal_signal(status: int, stderr: str) -> int:
    """The signal that killed a process, or 0. What faulthandler saw counts before what ended it in the end."""
    seen = _FATAL_LINE.search(stderr)
    if seen and status:
        return int(_SIGNALS[seen.group(1)])
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def end_of(status: int, stderr: str) -> str:
    """How a process ended, for a sentence that begins with what it did.

    `status` is as `os.waitpid` gives it, `stderr` what the process wrote, with the stacks of `watch_crashes` if it
    called it: "dies with SIGSEGV (a segmentation fault) in inner_call of libguilty.so, at load (plugin.py:12)".
    """
    number = fatal_signal(status, stderr)
    told = End(number or status, log=stderr).sentence()
    frame, python = guilty(stderr), _PYTHON_FRAME.search(stderr) if number else None
    if number and frame:
        told += f" in {frame}"
    if python:
        told += f", at {python.group(3)} ({PurePath(python.group(1)).name}:{python.group(2)})"
    return told


def demangled(symbol: str) -> str:
    """A C++ name as it was written, where a C++ runtime is at hand to tell; else the symbol itself."""
    if not symbol.startswith("_Z"):
        return symbol
    try:
        demangle = ctypes.CDLL("libstdc++.so.6").__cxa_demangle
    except (AttributeError, OSError):
        return symbol
    demangle.restype = ctypes.c_void_p
    status = ctypes.c_int(0)
    found = demangle(symbol.encode(), None, None, ctypes.byref(status))
    if not found or status.value:
        return symbol
    text = ctypes.cast(found, ctypes.c_char_p).value or b""
    libc = ctypes.CDLL(None)
    libc.free.argtypes = (ctypes.c_void_p,)
    libc.free(found)
    return text.decode("utf-8", "replace")
