"""Dispatch: the keys that a wheel claims have kernels. Asks the dispatcher, executes nothing, needs no GPU."""

from __future__ import annotations

from pathlib import Path

import torch

from builder.gate.context import Context
from builder.gate.outcome import FAILED, NOT_RUN, PASSED, Outcome

#: Kernels that serve every backend by calling other ops: they say nothing of any one backend.
_COMPOSITE = ("CompositeImplicitAutograd", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")
_SHOWN = ("CPU", "CUDA", "Meta", "Autograd", "AutogradCPU", "AutogradCUDA", "AutocastCPU", "AutocastCUDA", *_COMPOSITE)


def dispatch(context: Context) -> list[Outcome]:
    """The check "dispatch": an outcome for each library that is claimed and each op that was discovered."""
    outcomes = [_library(stem) for stem in sorted(context.spec.libraries) if not _is_loaded(stem)]
    claimed = sorted({key for keys in context.spec.libraries.values() for key in keys})
    for op in context.ops:
        if "::" in op:
            outcomes.append(_op(op, _keys(context, op, claimed)))
        else:
            reason = "no dispatcher op: only calling it tells which devices it serves"
            outcomes.append(Outcome("dispatch", op, "", NOT_RUN, reason))
    spaces = {op.partition("::")[0] for op in context.ops if "::" in op}
    for op in _dangling():
        if op.partition("::")[0] in spaces:
            reason = "a kernel is registered for it, but no schema: the library that defines the op is not loaded"
            outcomes.append(Outcome("dispatch", op, "", FAILED, reason))
    return outcomes


def _keys(context: Context, op: str, claimed: list[str]) -> list[str]:
    """What the libraries claim, or without a claim what the cases do; less what the op's cases say it has not."""
    cases = [case for case in context.cases if case.op in (op, op.partition(".")[0])]
    if not cases:
        return claimed
    devices = {device.upper() for case in cases for device in case.devices}
    return [key for key in claimed or sorted(devices) if key in devices or key not in ("CPU", "CUDA")]


def _op(op: str, keys: list[str]) -> Outcome:
    registered = [key for key in _SHOWN if has_kernel(op, key)]
    composite = [key for key in _COMPOSITE if key in registered]
    untold = []
    for key in keys:
        if key == "CUDA" and torch.version.cuda is None:
            untold.append("torch here is a CPU build: the extension need not have its CUDA kernels")
        elif has_kernel(op, key):
            continue
        elif composite or _computed(op, key):
            if key != "CPU":  # on the CPU the values show it
                untold.append(f"a catch-all kernel: for {key} the dispatcher cannot tell; run the gate on a GPU")
        else:
            reason = (
                f"no kernel for {key}: a call says \"Could not run '{op}' with arguments from the '{key}' backend\"; "
                f"registered are {', '.join(registered) or 'none'}. Load the library that registers it"
                + (", and build it with the CUDA sources (FORCE_CUDA=1)" if key == "CUDA" else "")
            )
            return Outcome("dispatch", op, "", FAILED, reason, evidence={"registered": registered, "claimed": keys})
    evidence = {"registered": registered, "claimed": keys}
    if untold:
        return Outcome("dispatch", op, "", NOT_RUN, untold[0], evidence=evidence)
    if not keys:
        return Outcome(
            "dispatch",
            op,
            "",
            NOT_RUN,
            "no claim to hold it against: neither libraries in the recipe nor a case",
            evidence=evidence,
        )
    return Outcome("dispatch", op, "", PASSED, ", ".join(keys), evidence=evidence)


def has_kernel(op: str, key: str) -> bool:
    """Whether a kernel of its own is registered for the op at a dispatch key."""
    try:
        return bool(torch._C._dispatch_has_kernel_for_dispatch_key(op, key))
    except RuntimeError:  # a key this torch does not know
        return False


def _computed(op: str, key: str) -> bool:
    try:
        return bool(torch._C._dispatch_has_computed_kernel_for_dispatch_key(op, key))
    except (AttributeError, RuntimeError):
        return False


def _dangling() -> list[str]:
    try:
        text = torch._C._dispatch_find_dangling_impls()
    except (AttributeError, RuntimeError):
        return []
    return sorted(
        {line.split(":", 1)[1].strip() for one in text for line in one.splitlines() if line.startswith("name:")}
    )


def _library(stem: str) -> Outcome:
    if torch.version.cuda is None:
        reason = f"the library {stem} is not loaded, and torch here is a CPU build"
        return Outcome("dispatch", "", "", NOT_RUN, reason)
    return Outcome(
        "dispatch", "", "", FAILED, f"the library {stem} is not loaded by the import: no op of it can be there"
    )


def _is_loaded(stem: str) -> bool:
    """Whether a library of this stem is mapped; a name like _C.abi3.so or _C.cpython-312-x86_64-linux-gnu.so."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    return any(line.rpartition("/")[2].partition(".")[0] == stem for line in lines if line.endswith(".so"))
