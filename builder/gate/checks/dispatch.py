"""The check "dispatch": ops have kernels for the claimed dispatch keys. Runs no op and needs no GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

import torch

from builder.gate.case import Case
from builder.gate.context import Context
from builder.gate.imports.registration import kernel_line, schema_line
from builder.gate.outcome import FAILED, NOT_RUN, PASSED, Outcome
from builder.gate.system.files import mapped_files

#: Keys of kernels that serve every backend by calling other ops; they do not show that a backend is supported.
_COMPOSITE = ("CompositeImplicitAutograd", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")
_SHOWN = ("CPU", "CUDA", "Meta", "Autograd", "AutogradCPU", "AutogradCUDA", "AutocastCPU", "AutocastCUDA", *_COMPOSITE)


def dispatch(context: Context) -> list[Outcome]:
    """The check "dispatch": an outcome for each claimed library that is not loaded, and for each discovered op."""
    # The stem of _C.abi3.so and of _C.cpython-312-x86_64-linux-gnu.so is _C.
    loaded = {Path(path).name.partition(".")[0] for path in mapped_files() if path.endswith(".so")}
    verdict, more = FAILED, "so its ops are missing"
    if torch.version.cuda is None:
        verdict, more = NOT_RUN, "perhaps because this torch is a CPU build"
    outcomes = [
        Outcome("dispatch", "", "", verdict, f"the import does not load the library {stem}, {more}")
        for stem in sorted(set(context.spec.libraries) - loaded)
    ]
    claimed = sorted({key for keys in context.spec.libraries.values() for key in keys})
    for op in context.ops:
        if "::" in op:
            outcomes.append(_op(op, _keys(context, op, claimed)))
        else:
            reason = "the op is a Python callable, which has no kernels in the dispatcher to check"
            outcomes.append(Outcome("dispatch", op, "", NOT_RUN, reason))
    spaces = {op.partition("::")[0] for op in context.ops if "::" in op}
    dangling: list[str] = []
    with contextlib.suppress(AttributeError, RuntimeError):
        dangling = "\n".join(torch._C._dispatch_find_dangling_impls()).splitlines()
    for op in sorted({line.partition(":")[2].strip() for line in dangling if line.startswith("name:")}):
        if op.partition("::")[0] in spaces:
            reason = (
                "a kernel is registered, but no schema: import the library that defines the op, "
                f"or add {schema_line(op)}"
            )
            outcomes.append(Outcome("dispatch", op, "", FAILED, reason))
    return outcomes


def _keys(context: Context, op: str, claimed: list[str]) -> list[str]:
    """Return the keys that the recipe's libraries, or else the cases, claim, without devices that the cases exclude."""
    cases = [case for case in context.cases if case.op.removesuffix(".default") in (op, op.partition(".")[0])]
    if not cases:
        return claimed
    devices = {device.upper() for case in cases for device in case.devices}
    return [key for key in claimed or sorted(devices) if key in devices or key not in ("CPU", "CUDA")]


def _op(op: str, keys: list[str]) -> Outcome:
    registered = [key for key in _SHOWN if has_kernel(op, key)]
    composite = [key for key in _COMPOSITE if key in registered]
    unknown = []
    for key in keys:
        if key == "CUDA" and torch.version.cuda is None:
            unknown.append("this torch is a CPU build, so the extension may have left out its CUDA kernels")
        elif has_kernel(op, key):
            continue
        elif composite or has_kernel(op, key, "computed_"):
            if key != "CPU":  # for the CPU the check "values" tests it
                unknown.append(
                    f"a composite kernel covers {key} but does not prove that the op works there: run the gate on a GPU"
                )
        else:
            reason = (
                f"no kernel for {key}: a call raises \"Could not run '{op}' with arguments from the '{key}' backend\"; "
                f"registered: {', '.join(registered) or 'none'}. "
                + ("Build the library with the CUDA sources. " if key == "CUDA" else "")
                + f"List the module that loads the library under `imports`, or add {kernel_line(op, key)}"
            )
            return Outcome("dispatch", op, "", FAILED, reason, evidence={"registered": registered, "claimed": keys})
    if not keys:
        unknown = ["nothing to check: neither `libraries` in the recipe nor a case names a dispatch key for this op"]
    verdict, reason = (NOT_RUN, unknown[0]) if unknown else (PASSED, ", ".join(keys))
    return Outcome("dispatch", op, "", verdict, reason, evidence={"registered": registered, "claimed": keys})


def unused_cpu_kernels(cases: Sequence[Case], ops: Sequence[str]) -> set[str]:
    """Return the ops, as cases name them, that have a CPU kernel although each of their cases excludes the CPU."""
    named = {case.op.removesuffix(".default") for case in cases}
    named -= {case.op.removesuffix(".default") for case in cases if "cpu" in case.devices}
    found = {op for op in ops if has_kernel(op, "CPU")}
    unused = {name for name in named if found & {op for op in ops if name in (op, op.partition(".")[0])}}
    return {case.op for case in cases if case.op.removesuffix(".default") in unused}


def has_kernel(op: str, key: str, kind: str = "") -> bool:
    """Whether a kernel is registered for the op at exactly this dispatch key, or `computed_` by torch for it."""
    try:
        return bool(getattr(torch._C, f"_dispatch_has_{kind}kernel_for_dispatch_key")(op, key))
    except (AttributeError, RuntimeError):  # a function or a key that this torch does not know
        return False
