"""The checks "memory" and "repeat": no access outside a tensor, no uninitialised memory, the same bits in every run."""

from __future__ import annotations

import gc
from collections.abc import Callable

import torch
from torch import Tensor

from builder.gate.case import Case
from builder.gate.checks.gradients import backward, differentiable, leaves, seeds
from builder.gate.checks.guard_pages import GuardPages, digest
from builder.gate.checks.outputs import outputs_of
from builder.gate.context import Context, detached, dtype_name, map_tensors
from builder.gate.outcome import Outcome
from builder.gate.system import malloc_checks

#: Byte that fills fresh memory (a huge negative and a tiny number), and whether the guard page is after an input.
_ROUNDS = ((0xFE, True), (0x01, False))
#: Threads, so that a race between threads shows.
_THREADS = 4


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
    if not (malloc_checks.heap_checks_work() and malloc_checks.fill_with(_ROUNDS[0][0])):
        reason = "glibc's heap checks do not work on this machine: they missed a write past an allocation"
        return context.not_run(case, reason)
    pages = GuardPages()
    found = [_run_between_guards(context, case, pages, fill, at_end) for fill, at_end in _ROUNDS]
    different = [name for name, one in found[0].items() if found[1][name] != one]
    if not different:
        malloc_checks.stop_filling()
        return context.passed(case, bits=found[0])
    # Run the first round again: if its result differs now, the cause is not memory, and "repeat" reports it.
    again = _run_between_guards(context, case, pages, *_ROUNDS[0])
    malloc_checks.stop_filling()
    if again != found[0] or "cpu" not in case.deterministic:
        return context.not_run(case, "repeated runs differ, so the effect of uninitialised memory cannot be tested")
    reason = f"{different[0]}: the result depends on uninitialised memory: part of the result is never written"
    return context.failed(case, f"{reason}; write every element, or allocate with zeros")


def _run_between_guards(context: Context, case: Case, pages: GuardPages, fill: int, at_end: bool) -> dict[str, str]:
    """Return the bits of all results with fresh memory filled and every input directly beside a guard page."""
    malloc_checks.fill_with(fill)
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
