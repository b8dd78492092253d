"""Memory: nothing written past an end, nothing read past one, nothing uninitialised; and the same bits every time."""

from __future__ import annotations

import gc
from typing import Any

import torch
from torch import Tensor

from builder.gate import heap
from builder.gate.case import Case
from builder.gate.context import Context, detached, mapped
from builder.gate.fences import GuardPages, bits
from builder.gate.gradients import backward, differentiable, leaves, seeds
from builder.gate.outcome import Outcome

#: What fresh memory holds, a huge negative number and a tiny one, and whether the forbidden page comes after an input.
_ROUNDS = ((0xFE, True), (0x01, False))
#: Enough for a race to show, where the op has more than one thread at work.
_THREADS = 4


def repeat(context: Context, case: Case) -> list[Outcome]:
    """The check "repeat": twice in one process, with several threads, gives the same bits."""
    if context.device not in case.deterministic:
        return [context.not_run("repeat", case, f"the case says the op is not deterministic on {context.device}")]
    torch.set_num_threads(_THREADS)
    context.doing("first run")
    first = _all_bits(context, case, plain_arguments)
    context.doing("second run")
    second = _all_bits(context, case, plain_arguments)
    # With one call between: what changes with every second call looks the same after an even number of them.
    context.call(case, context.arguments(case, grad=False))
    context.doing("third run")
    third = _all_bits(context, case, plain_arguments)
    for name, one in first.items():
        if second[name] != one or third[name] != one:
            reason = (
                f"{name}: two runs of the same input give other bits: it reads memory it never wrote, or threads race"
            )
            return [context.failed("repeat", case, f"{reason} (if that is meant, say so with `deterministic`)")]
    return [context.passed("repeat", case, bits=first)]


def memory(context: Context, case: Case) -> list[Outcome]:
    """The check "memory", under glibc's heap checks: inputs between pages nobody may touch, fresh memory filled."""
    # As many as in "repeat", whose bits these are held against: a matrix product adds up otherwise over fewer threads.
    torch.set_num_threads(_THREADS)
    context.doing("trying the heap checks themselves")
    if not (heap.checks_work() and heap.fill_with(_ROUNDS[0][0])):
        return [
            context.not_run("memory", case, "glibc's heap checks do not work here: a write past an end went unseen")
        ]
    pages = GuardPages()
    found = [_laid(context, case, pages, fill, at_end) for fill, at_end in _ROUNDS]
    different = [name for name, one in found[0].items() if found[1][name] != one]
    if not different:
        heap.fill_no_more()
        return [context.passed("memory", case, bits=found[0])]
    # The first round once more: an op that differs even now does so for another reason, which "repeat" tells.
    again = _laid(context, case, pages, *_ROUNDS[0])
    heap.fill_no_more()
    if again != found[0] or "cpu" not in case.deterministic:
        return [context.not_run("memory", case, "two runs differ in any case, so what they read cannot be told apart")]
    reason = f"{different[0]}: the answer changes with what fresh memory holds: part of the result is never written"
    return [context.failed("memory", case, f"{reason}; fill it, or make it with zeros")]


def _laid(context: Context, case: Case, pages: GuardPages, fill: int, at_end: bool) -> dict[str, str]:
    """The bits of everything with fresh memory filled, and every input flush with a page nobody may touch."""

    def arguments(context: Context, case: Case, dtype: torch.dtype) -> tuple[Any, ...]:
        return mapped(context.arguments(case, dtype), lambda _, tensor: pages.place(tensor, at_end=at_end))

    heap.fill_with(fill)
    found = _all_bits(
        context, case, arguments, f", every input beside a forbidden page {'after' if at_end else 'before'} it"
    )
    gc.collect()  # what is freed is looked at
    return found


def plain_arguments(context: Context, case: Case, dtype: torch.dtype) -> tuple[Any, ...]:
    """The case's own arguments."""
    return context.arguments(case, dtype)


def _all_bits(context: Context, case: Case, arguments: Any, how: str = "") -> dict[str, str]:  # noqa: ANN401
    """The bits of the answer, and of the gradients, by dtype."""
    found: dict[str, str] = {}
    for dtype in case.dtypes:
        name = str(dtype).replace("torch.", "")
        context.doing(f"{name}{how}")
        args = arguments(context, case, dtype)
        with torch.no_grad():
            result = context.call(case, detached(args))
        found[name] = bits(result)
        del result
        if any(tensor.requires_grad for tensor in _tensors(args)) and "gradients" not in case.not_claimed:
            context.doing(f"{name}, backward{how}")
            asking = leaves(args)
            outputs = differentiable(context.call(case, args))
            if outputs:
                found[f"{name} backward"] = bits(backward(outputs, asking, seeds(outputs)))
            del outputs
    return found


def _tensors(args: Any) -> list[Tensor]:  # noqa: ANN401
    found: list[Tensor] = []
    mapped(args, lambda _, tensor: found.append(tensor) or tensor)  # type: ignore[func-returns-value]
    return found
