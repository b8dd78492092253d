"""The checks "opcheck", "export" and "compile": an op inside what torch makes of a program.

Which sizes must stay free is told by the cases: where another case of the same op, with the same constants, has another
size in a dimension, an export that fixes this dimension is wrong. Sizes 0 and 1 are special to torch's compiler by
design, so dimensions are only compared from 2 on.
"""

from __future__ import annotations

import contextlib
import importlib
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from builder.gate.calls import Calling, alike, rebuilding
from builder.gate.case import Case
from builder.gate.context import Context, compare, flatten, places, sentence
from builder.gate.outcome import Outcome
from builder.gate.releases import BeyondTorchError, raise_if_beyond, release_of

_RELEASE = release_of(torch.__version__)
_NAME = "{}.{}".format(*_RELEASE)
#: torch.export is strict there, and no more than a prototype: what it refuses says nothing of the op.
_PROTOTYPE = _RELEASE < (2, 4)
_BACKEND = "aot_eager"  # all of the tracing, none of the code generation: needs no C++ compiler and no Triton
#: Imported by the first compilation of something differentiable, which takes seconds.
_LAZY = ("torch._functorch.partitioners", "torch._inductor.lowering", "torch.testing._internal.optests")
#: Where torch stops to say what happened.
_CHATTER = re.compile(
    r"The error above occurred|\(unhinted|Hint: |For more information|Developer debug context"
    r"|Set TORCH_LOGS|Set torch\._dynamo\.config"  # <= 2.6, 2.0
)
#: What to do about what torch says.
_ADVICE = (
    (r"fake impl|UnsupportedOperatorException|with fake tensors", "register a fake with torch.library.register_fake"),
    (r"data-dependent|DataDependent|Tensor\.item", "do not read a tensor's data, or put what does into an op"),
    (r"graph break|Unsupported|graph_break", "put what cannot be traced into an op with a fake kernel"),
    (r"ConstraintViolation|[Ss]pecializ|Guard failed: .*size", "keep sizes symbolic: no int() and no branch on a size"),
)


def warm_up() -> None:
    """Pay once for what the first compilation imports and builds, seconds of it, before processes are forked.

    Runs no op of an extension. It asks for no gradient: autograd would start threads, and fork then fails. Importing
    torch's inductor registers ops of its own, so call it before ops are listed.
    """
    with contextlib.suppress(Exception):  # an old torch, or one that cannot compile here: the checks say so
        torch.compile(lambda x: x.sin() * 2, backend=_BACKEND, fullgraph=True, dynamic=True)(torch.ones(2, 3))
        torch._dynamo.reset()
    for name in _LAZY:
        with contextlib.suppress(Exception):
            importlib.import_module(name)


def opcheck(context: Context, case: Case) -> list[Outcome]:
    """Each test of `torch.library.opcheck`: schema, autograd registration, fake tensors, dynamic AOT dispatch.

    It takes dispatcher ops: a Python callable gets no outcome.
    """
    op = context.overload(case)
    if op is None:
        return []  # a Python callable; opcheck takes dispatcher ops
    if not hasattr(torch.library, "opcheck"):
        return [context.not_run("opcheck", case, "torch.library.opcheck came with torch 2.4")]
    found = torch.library.opcheck(op, context.arguments(case), dict(case.kwargs), raise_exception=False)
    faults = {name: result for name, result in found.items() if result != "SUCCESS"}
    if list(faults) == ["test_aot_dispatch_dynamic"] and _answers_nan(context, case):
        reason = "test_aot_dispatch_dynamic takes two NaN for different, and the answer holds one; all else passes"
        return [context.not_run("opcheck", case, reason)]
    if not faults:
        return [context.passed("opcheck", case, f"{len(found)} tests")]
    # One outcome for each test: they have different causes.
    return [
        context.failed("opcheck", case, f"{name} of opcheck: {_said(error)}", test=name, message=str(error)[:4000])
        for name, error in faults.items()
    ]


def _answers_nan(context: Context, case: Case) -> bool:
    answers = flatten(context.call(case, context.arguments(case, grad=False)))
    return any(bool(one.isnan().any()) for one in answers if one.is_floating_point() or one.is_complex())


def export(context: Context, case: Case) -> list[Outcome]:
    """`torch.export` (non-strict) with these sizes, then with every size free; both programs give the op's answers."""
    if _RELEASE < (2, 1):
        return [context.not_run("export", case, "torch.export came with torch 2.1")]
    context.doing("export with fixed sizes")
    try:
        fault = _exported(context, case, None, [case])[0]
    except BeyondTorchError as beyond:
        return [context.not_run("export", case, str(beyond))]
    if fault:
        return [context.failed("export", case, f"with fixed sizes, {fault}")]
    automatic = getattr(getattr(torch.export, "Dim", None), "AUTO", None)
    if automatic is None:
        return [context.not_run("export", case, "fixed sizes pass; dynamic sizes are tested from torch 2.6 on")]
    first, others = alike(context, case)
    if first is not case:
        return [context.passed("export", case, f"fixed sizes; dynamic ones with the case '{first.name}'")]
    context.doing("export with dynamic sizes")
    others = [one for one in others if not one.edge]
    fault, free = _exported(context, case, automatic, [case, *others])
    if fault:
        return [context.failed("export", case, f"with dynamic sizes, {fault}", free=free)]
    return [context.passed("export", case, f"{len(free)} sizes free, {len(others)} other cases", free=free)]


def _exported(context: Context, case: Case, dimension: Any, runs: Sequence[Case]) -> tuple[str, list[str]]:  # noqa: ANN401
    """What is wrong with the export, or nothing; and which sizes it left free. Raises BeyondTorchError."""
    args = context.arguments(case, grad=False)
    tensors = [tensor for _, tensor in places(args)]
    names = [f"{place} dimension" for place, _ in places(args)]
    asked = [{at: dimension for at, size in enumerate(tensor.shape) if size > 1} for tensor in tensors]
    module = Calling(rebuilding(context, case, args))
    try:
        dynamic = {} if dimension is None else {"dynamic_shapes": {"tensors": asked}}
        program = torch.export.export(module, (tensors,), **dynamic, **({} if _PROTOTYPE else {"strict": False}))
    except Exception as error:
        if _PROTOTYPE:
            raise BeyondTorchError(f"torch.export of torch {_NAME} raises {_said(error)}") from error
        return f"torch.export raises {_said(error)}", []
    free = _free_dimensions(program, len(tensors)) if dimension is not None else [set()] * len(tensors)
    told = [f"{name} {at}" for name, dims in zip(names, free) for at in sorted(dims)]
    if dimension is not None and any(asked) and not told:
        return "torch.export fixes every size: keep sizes symbolic in the fake, no int() and no branch on them", told
    for run in runs:
        others = [tensor for _, tensor in places(context.arguments(run, grad=False))]
        for name, one, other, dims in zip(names, tensors, others, free):
            for at, (size, wanted) in enumerate(zip(one.shape, other.shape)):
                if size != wanted and min(size, wanted) > 1 and at not in dims:
                    return (
                        f"torch.export fixes {name} {at} at {size}, and the case '{run.name}' has {wanted} there: keep "
                        "the size symbolic in the fake, no int() and no branch on it",
                        told,
                    )
        if _meets_zero_or_one(tensors, others):
            continue
        try:
            answer = program.module()(others)
        except Exception as error:
            if _PROTOTYPE:
                raise BeyondTorchError(f"the program exported by torch {_NAME} raises {_said(error)}") from error
            return f"the exported program raises {_said(error)} for the case '{run.name}'", told
        fault = _different(context, run, answer)
        if fault:
            return f"for the case '{run.name}', {fault}", told
    return "", told


def compiled(context: Context, case: Case) -> list[Outcome]:
    """`torch.compile(fullgraph=True)`, forward and backward: these sizes, then dynamic over the op's other cases."""
    try:
        torch._dynamo.eval_frame.check_if_dynamo_supported()
    except RuntimeError as error:
        return [context.not_run("compile", case, sentence(error))]
    first, others = alike(context, case)
    for dynamic, runs in ((False, [case]), (True, [case, *others])):
        if dynamic and first is not case:
            return [context.passed("compile", case, f"static; dynamic with the case '{first.name}'")]
        kind = "dynamic" if dynamic else "static"
        context.doing(f"compile, {kind}")
        torch._dynamo.reset()
        args = context.arguments(case)
        call = torch.compile(rebuilding(context, case, args), backend=_BACKEND, fullgraph=True, dynamic=dynamic)
        for run in runs:
            try:
                fault = _compiled_once(context, run, call)
            except BeyondTorchError as beyond:
                return [context.not_run("compile", case, f"fixed sizes pass; {beyond}" if dynamic else str(beyond))]
            if fault:
                other = "" if run is case else f" for the case '{run.name}'"
                return [context.failed("compile", case, f"{kind}{other}: {fault}")]
    return [context.passed("compile", case, f"static, dynamic over {1 + len(others)} cases")]


def _compiled_once(context: Context, case: Case, call: Callable[[Sequence[Tensor]], Any]) -> str:
    """What is wrong, or nothing. Raises BeyondTorchError."""
    tensors = [tensor for _, tensor in places(context.arguments(case))]
    try:
        answer = call(tensors)
    except Exception as error:  # noqa: BLE001 (dynamo lets out whatever it met)
        raise_if_beyond("compile", _RELEASE, error)
        return f"torch.compile(fullgraph=True) raises {_said(error)}"
    fault = _different(context, case, answer)
    if fault:
        return fault
    args = context.arguments(case)
    try:
        expected = _gradients([tensor for _, tensor in places(args)], context.call(case, args))
    except Exception:  # noqa: BLE001 (the check "gradients" is there for that)
        return ""
    try:
        gradients = _gradients(tensors, answer)
    except Exception as error:  # noqa: BLE001
        raise_if_beyond("compile", _RELEASE, error)
        return f"the compiled backward raises {_said(error)}"
    return compare(gradients, expected, case, context.dtype(case), "the compiled gradient") or ""


def _gradients(tensors: Sequence[Tensor], answer: Any) -> list[Tensor]:  # noqa: ANN401
    """Gradients of the answers, every element of them weighing one, with respect to the tensors that ask for them."""
    asked = [tensor for tensor in tensors if tensor.requires_grad]
    given = [tensor for tensor in flatten(answer) if tensor.requires_grad]
    if not asked or not given:
        return []
    found = torch.autograd.grad(given, asked, [torch.ones_like(one) for one in given], allow_unused=True)
    return [torch.zeros_like(one) if gradient is None else gradient for one, gradient in zip(asked, found)]


def _different(context: Context, case: Case, answer: Any) -> str:  # noqa: ANN401
    """How the traced answer differs from the op's own, or nothing; of an op that never answers alike, nothing."""
    if context.device not in case.deterministic:
        return ""
    expected = context.call(case, context.arguments(case))
    return compare(answer, expected, case, context.dtype(case), "the traced result") or ""


def _meets_zero_or_one(tensors: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    """Whether sizes differ where one of them is 0 or 1, which a program made for the other does not take."""
    sizes = [both for one, other in zip(tensors, others) for both in zip(one.shape, other.shape)]
    return any(size != wanted and min(size, wanted) < 2 for size, wanted in sizes)


def _free_dimensions(program: Any, count: int) -> list[set[int]]:  # noqa: ANN401
    """For each tensor given, the dimensions whose size the exported program leaves open."""
    given = set(program.graph_signature.user_inputs)
    values = [node.meta["val"] for node in program.graph.nodes if node.op == "placeholder" and node.name in given]
    free = [{at for at, size in enumerate(value.shape) if _is_free(size)} for value in values]
    return free + [set()] * (count - len(free))


def _is_free(size: Any) -> bool:  # noqa: ANN401
    # A size that the fake turned into a number stays a symbol here, with a guard on its value.
    return isinstance(size, torch.SymInt) and size.node.maybe_as_int() is None


def _said(error: BaseException) -> str:
    """An exception in a line, and what to do where that is known."""
    while str(error).lstrip().startswith("from user code:") and error.__cause__ is not None:
        error = error.__cause__  # torch 2.0 says where it was, and leaves what happened to the causes
    said = _CHATTER.split(sentence(error))[0].strip()
    advice = next((advice for pattern, advice in _ADVICE if re.search(pattern, said)), "")
    return f"{said}: {advice}" if advice else said
