"""The checks "memory" and "repeat": no access outside a tensor, no uninitialised memory, the same bits in every run."""

from __future__ import annotations

import ctypes
import functools
import gc
import os
import signal
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from builder.gate.case import Case
from builder.gate.checks.gradients import backward, differentiable, leaves, seeds
from builder.gate.checks.guard_pages import GuardPages, digest
from builder.gate.checks.outputs import outputs_of
from builder.gate.context import Context, detached, dtype_name, map_tensors
from builder.gate.outcome import Outcome

#: Byte that fills fresh memory (a huge negative and a tiny number), and whether the guard page is after an input.
_ROUNDS = ((0xFE, True), (0x01, False))
#: Threads, so that a race between threads shows.
_THREADS = 4
#: The functions of libc_malloc_debug have old symbol versions, which a look-up by name alone does not find.
_M_PERTURB = -6
#: First glibc version of a machine: x86_64, aarch64.
_VERSIONS = (b"GLIBC_2.2.5", b"GLIBC_2.17")
_SIZE = 4096


def repeat(context: Context, case: Case) -> list[Outcome]:
    """The check "repeat": three runs in one process, with several threads, give the same bits."""
    if context.device not in case.deterministic:
        reason = f"two runs may differ: the case says that the op is not deterministic on {context.device}"
        return context.not_run(case, reason)
    torch.set_num_threads(_THREADS)
    context.step("first run")
    first = _all_bits(context, case)
    context.step("second run")
    second = _all_bits(context, case)
    # One call in between: a result that alternates between two values would be the same in every second run.
    context.call(case, context.arguments(case, grad=False))
    context.step("third run")
    third = _all_bits(context, case)
    for name, one in first.items():
        if second[name] != one or third[name] != one:
            why = "the op reads uninitialised memory or has a race"
            advice = "if the op is not meant to be deterministic, leave this device out of `deterministic` in the case"
            reason = f"{name}: two runs with the same input give different bits: {why} ({advice})"
            return context.failed(case, reason)
    return context.passed(case, bits=first)


def memory(context: Context, case: Case) -> list[Outcome]:
    """The check "memory": under glibc's heap checks, with inputs beside guard pages and fresh memory filled."""
    # The same number as in "repeat", whose bits are compared with these: with fewer threads a matrix product sums in a
    # different order.
    torch.set_num_threads(_THREADS)
    context.step("testing the heap checks")
    if not (heap_checks_work() and fill_with(_ROUNDS[0][0])):
        reason = "glibc's heap checks do not work on this machine: they missed a write past an allocation"
        return context.not_run(case, reason)
    pages = GuardPages()
    found = [_run_between_guards(context, case, pages, fill, at_end) for fill, at_end in _ROUNDS]
    different = [name for name, one in found[0].items() if found[1][name] != one]
    if not different:
        _mallopt()(_M_PERTURB, 0)
        return context.passed(case, bits=found[0])
    # Run the first round again: if its result differs now, the cause is not memory, and "repeat" reports it.
    again = _run_between_guards(context, case, pages, *_ROUNDS[0])
    _mallopt()(_M_PERTURB, 0)
    if again != found[0] or "cpu" not in case.deterministic:
        return context.not_run(case, "repeated runs differ, so the effect of uninitialised memory cannot be tested")
    reason = f"{different[0]}: the result depends on uninitialised memory: part of the result is never written"
    return context.failed(case, f"{reason}; write every element, or allocate with zeros")


def _run_between_guards(context: Context, case: Case, pages: GuardPages, fill: int, at_end: bool) -> dict[str, str]:
    """Return the bits of all results with fresh memory filled and every input directly beside a guard page."""
    fill_with(fill)
    how = f", with a guard page {'after' if at_end else 'before'} every input"
    found = _all_bits(context, case, how, lambda tensor: pages.copy(tensor, at_end=at_end))
    gc.collect()  # glibc checks memory when it is freed
    return found


def _all_bits(
    context: Context, case: Case, how: str = "", place: Callable[[Tensor], Tensor] = lambda tensor: tensor
) -> dict[str, str]:
    """Return the bits of the results and of the gradients by dtype; `place` makes the inputs from those of the case.

    What the op writes to its arguments counts as a result.
    """
    found: dict[str, str] = {}
    for dtype in case.dtypes:
        name = dtype_name(dtype)
        context.step(f"{name}{how}")
        args = map_tensors(context.arguments(case, dtype), lambda _, tensor: place(tensor))
        inputs = leaves(args)
        with torch.no_grad():
            result = outputs_of(context, case, detached(args))
        found[name], wrote = digest(*result.tensors), bool(result.written)
        del result
        if inputs and "gradients" not in case.not_claimed:
            context.step(f"{name}, backward{how}")
            if wrote:
                args = map_tensors(context.arguments(case, dtype), lambda _, tensor: place(tensor))
                inputs = leaves(args)
            outputs = differentiable(outputs_of(context, case, args).tensors)
            if outputs:
                found[f"{name} backward"] = digest(*backward(outputs, inputs, seeds(outputs)))
            del outputs
    return found


def fill_with(byte: int) -> bool:
    """Make malloc fill fresh memory with `byte`, 1 to 254; return whether it does."""
    _mallopt()(_M_PERTURB, byte ^ 0xFF)
    allocate, free = _allocator()
    address = allocate(_SIZE)
    # The start of free memory contains the allocator's own links, so look at the middle.
    content = ctypes.string_at(address + _SIZE // 2, 16)
    free(address)
    return content == bytes([byte]) * 16


@functools.cache
def heap_checks_work() -> bool:
    """Return whether a write one byte past an allocation aborts a process; tries it in a forked child.

    The fork server calls this first, so that its children inherit the cached result.
    """
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGABRT, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        allocate, free = _allocator()
        address = allocate(100)
        # glibc looks for the end of the allocation from behind, by lengths that it reads from the memory. Leftover
        # content can pass for such lengths and so hide the write. Zeros cannot.
        ctypes.memset(address, 0, 100)
        ctypes.c_ubyte.from_address(address + 100).value ^= 0xFF
        free(address)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGABRT


def _mallopt() -> Any:  # noqa: ANN401
    libc = ctypes.CDLL(None)
    libc.dlvsym.restype = ctypes.c_void_p
    libc.dlvsym.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p]
    for version in _VERSIONS:
        if address := libc.dlvsym(None, b"mallopt", version):
            return ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int)(address)
    return libc.mallopt


def _allocator() -> tuple[Any, Any]:
    """Return malloc and free as the interpreter, and so every library, is bound to them."""
    allocate, free = ctypes.pythonapi.PyMem_RawMalloc, ctypes.pythonapi.PyMem_RawFree
    allocate.restype, allocate.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    free.restype, free.argtypes = None, [ctypes.c_void_p]
    return allocate, free
