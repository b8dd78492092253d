"""How a process ended: signal or exit status, exceeded limit, message of the C library, and the stacks of a crash.

`install_crash_handlers` chains two handlers: faulthandler writes the Python stack and raises the signal again, then our
handler calls glibc's `backtrace` to write the native stack. This needs no torch, so unlike torch's own
`_set_print_stack_traces_on_fatal_signal` it also works before torch is imported.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import re
import signal
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePath
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


#: The signals that crash handlers are installed for.
FATAL = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)
_HEADING = "Native stack (innermost first):"
_DEPTH = 96
#: Seconds after which SIGALRM kills a handler that hangs, e.g. because the crash holds malloc's lock.
_SECONDS = 10
#: Bytes of the signal stack: after a stack overflow a handler cannot run on the thread's own stack.
_STACK_BYTES = 1 << 20

_FRAME = re.compile(r"^(?P<library>.+?)(?:\((?P<symbol>[^()+]*)(?:\+(?P<offset>0x[0-9a-f]+))?\))? ?\[0x[0-9a-f]+\]$")
#: The words of faulthandler, in the order of FATAL.
_WORDS = ("Segmentation fault", "Aborted", "Bus error", "Floating", "Illegal")
_FATAL_LINE = re.compile(rf"^Fatal Python error: ({'|'.join(_WORDS)})", re.MULTILINE)
#: Runtime libraries in which a crash happens although a different library caused it.
_RUNTIME = re.compile(r"^(libc|libpthread|libm|libstdc\+\+|libgcc_s|linux-vdso|ld-linux[\w-]*|libc_malloc\w+)[.-]")

#: Keeps the handlers and their stack alive as long as the process.
_KEPT: list[Any] = []


class _SignalStack(ctypes.Structure):
    _fields_ = (("pointer", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


@cache
def demangle(symbol: str) -> str:
    """The readable form of a C++ name; other names, and all names without libstdc++, unchanged."""
    if not symbol.startswith("_Z"):  # other names do not load libstdc++ into the process
        return symbol
    try:
        library = ctypes.CDLL("libstdc++.so.6")
        demangler, free = library["__cxa_demangle"], library["free"]
    except (AttributeError, OSError):
        return symbol
    demangler.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    demangler.restype = ctypes.c_void_p  # an address, not bytes: the caller frees the buffer
    free.argtypes, free.restype = [ctypes.c_void_p], None
    buffer = demangler(symbol.encode(), None, None, None)
    if not buffer:
        return symbol
    try:
        return ctypes.string_at(buffer).decode("utf-8", "replace")
    finally:
        free(buffer)


@dataclass(frozen=True)
class Frame:
    """A frame of a native stack: its library, its function if the library names it, and its offset."""

    library: str
    symbol: str
    offset: str

    def __str__(self) -> str:
        name = PurePath(self.library).name
        return f"{demangle(self.symbol)} of {name}" if self.symbol else f"{self.offset or '?'} of {name}"


def install_crash_handlers(fd: int = 2) -> None:
    """Make a fatal signal write the Python and the native stack to `fd` before it kills the process.

    Call it in the main thread; `fd` must stay open. Without glibc only the Python stack is written. Python code writes
    the native stack, so a crash in a thread without the interpreter's lock waits for the thread that holds it, and
    forever if that thread joins the crashed one: the process needs a time limit. The Python stack is written first.
    """
    faulthandler.disable()  # the handler installed last is called first, and that must be faulthandler
    with contextlib.suppress(AttributeError, OSError):
        _write_native_stack(fd)
    faulthandler.enable(fd)
    if _KEPT:
        memory = ctypes.create_string_buffer(_STACK_BYTES)
        stack = _SignalStack(ctypes.addressof(memory), 0, _STACK_BYTES)
        ctypes.PyDLL(None).sigaltstack(ctypes.byref(stack), None)
        _KEPT.append(memory)


def _write_native_stack(fd: int) -> None:
    libc = ctypes.PyDLL(None)  # PyDLL keeps the interpreter's lock, so no other Python thread runs meanwhile
    libc.signal.restype, libc.signal.argtypes = ctypes.c_void_p, (ctypes.c_int, ctypes.c_void_p)
    frames = (ctypes.c_void_p * _DEPTH)()
    backtrace, symbols, write = libc.backtrace, libc.backtrace_symbols_fd, libc.write
    restore, alarm = libc.signal, libc.alarm
    heading = f"\n{_HEADING}\n".encode()
    alarmed, aborted, size = int(signal.SIGALRM), int(signal.SIGABRT), len(heading)
    backtrace(frames, _DEPTH)  # the first call loads libgcc_s, which a handler must not do

    def handle(number: int) -> None:
        restore(alarmed, None)
        alarm(_SECONDS)
        restore(number, None)  # restores the default action, which runs when the handler returns
        depth = backtrace(frames, _DEPTH)
        if number == aborted:
            # These are return addresses. If a call to abort() or throw is the last instruction of a function, the
            # return address belongs to the next function. For other signals the innermost address is exact.
            for index in range(depth):
                frames[index] = (frames[index] or 1) - 1
        write(fd, heading, size)
        symbols(frames, depth, fd)

    handler = ctypes.PYFUNCTYPE(None, ctypes.c_int)(handle)
    for number in FATAL:
        restore(number, ctypes.cast(handler, ctypes.c_void_p))
    _KEPT.extend((handler, frames, heading))


def native_stack(stderr: str) -> list[Frame]:
    """Return the frames that the crash handler wrote, innermost first; empty if it wrote none."""
    _, found, text = stderr.rpartition(_HEADING)
    frames: list[Frame] = []
    for line in text.strip().splitlines() if found else ():
        match = _FRAME.match(line.strip())
        if match is None:
            break
        frames.append(Frame(match["library"], match["symbol"] or "", match["offset"] or ""))
    # The handlers' frames end at the last trampoline of the C library: one for our handler, one for faulthandler.
    of_libc = [one for one in frames if PurePath(one.library).name.startswith(("libc.so", "libc-", "libpthread"))]
    trampoline = next((one for one in of_libc if "backtrace" not in one.symbol), None)
    return frames if trampoline is None else frames[len(frames) - frames[::-1].index(trampoline) :]


def crash_frame(stderr: str) -> Frame | None:
    """Return the innermost native frame outside the C and C++ runtimes, or None."""
    frames = native_stack(stderr)
    own = (frame for frame in frames if not _RUNTIME.match(PurePath(frame.library).name))
    return next(own, frames[0] if frames else None)


def fatal_signal(status: int, stderr: str) -> int:
    """Return the signal that killed a process, or 0; the signal faulthandler wrote counts before the wait status."""
    line = _FATAL_LINE.search(stderr)
    if line and status:
        return int(FATAL[_WORDS.index(line[1])])
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def describe_exit(status: int, stderr: str) -> str:
    """Return how a process ended, to follow what it was doing in a sentence.

    `status` is a wait status of `os.waitpid`; `stderr` is the output, with the stacks of `install_crash_handlers` if
    the process called it. Examples: "dies with SIGSEGV (a segmentation fault) in f of libf.so, at load (plugin.py:12)",
    "raises ValueError: no".
    """
    number = fatal_signal(status, stderr)
    _, traceback, lines = f"\n{stderr}".rpartition("\nTraceback (most recent call last)")
    if traceback and not number and status == 1 << 8:
        # The message may have more lines, so the last line need not name the exception.
        return "raises " + next((line for line in lines.splitlines()[1:] if line and not line[0].isspace()), "")
    text = ProcessExit(number or status, log=stderr).sentence()
    frame, python = crash_frame(stderr), PYTHON_FRAME.search(stderr) if number else None
    if number and frame:
        text += f" in {frame}"
    if python:
        text += f", at {python.group(3)} ({PurePath(python.group(1)).name}:{python.group(2)})"
    return text
