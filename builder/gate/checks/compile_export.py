"""The checks "opcheck", "export" and "compile": an op in exported and compiled programs.

The cases decide which sizes must stay dynamic: if a case of the same op with the same constants has a different size in
a dimension, an export must not fix that dimension. torch's compiler specialises on the sizes 0 and 1 by design, so
only sizes from 2 on are compared.
"""

from __future__ import annotations

import contextlib
import importlib
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from builder.gate.case import Case
from builder.gate.checks.gradients import backward, differentiable, leaves
from builder.gate.checks.guard_pages import mutable
from builder.gate.checks.outputs import Outputs, outputs, outputs_of, writable
from builder.gate.checks.values import compare, compare_outputs
from builder.gate.context import Context, flatten, iter_tensors, placed, resolve, sentence
from builder.gate.imports.registration import no_autograd
from builder.gate.outcome import Outcome
from builder.gate.system import nvidia
from builder.gate.torch_limits import UnsupportedByTorchError, raise_if_unsupported, release_of


class CallModule(torch.nn.Module):  # type: ignore[misc]  # torch is not installed where types are checked
    """A module around a call, because torch.export takes modules."""

    def __init__(self, call: Callable[[Sequence[Tensor]], Any]) -> None:
        super().__init__()
        self.call = call

    def forward(self, tensors: list[Tensor]) -> Any:  # noqa: ANN401
        """Call it."""
        return self.call(tensors)


def tensor_function(case: Case, args: Sequence[Any]) -> Callable[[Sequence[Tensor]], Any]:
    """Return the case's call as a function of its tensors; all other arguments are constants, as in a model."""
    function, kwargs = placed(resolve(case.op), args), dict(case.kwargs)
    # The layout has strings instead of positions: under dynamic=True a position would become a symbol, and torch 2.2
    # and 2.6 cannot trace an assignment to a list item whose index is a symbol.
    layout: list[tuple[str, list[tuple[str, Any]]]] = []
    for arg in args:
        is_list = isinstance(arg, (list, tuple)) and any(isinstance(item, Tensor) for item in arg)
        items = arg if is_list else [arg]
        entries = [("tensor", None) if isinstance(one, Tensor) else ("constant", one) for one in items]
        layout.append(("list" if is_list else "single", entries))

    def call(tensors: Sequence[Tensor]) -> Any:  # noqa: ANN401
        given = iter(tensors)
        built: list[Any] = []
        for form, entries in layout:
            items: list[Any] = []
            for kind, value in entries:
                items.append(next(given) if kind == "tensor" else value)
            built.append(items if form == "list" else items[0])
        return function(*built, **kwargs)

    return call


def same_up_to_sizes(context: Context, case: Case) -> list[Case]:
    """Return the op's cases that differ only in sizes from this one, which is among them, in their order.

    They have the same constants, ranks and dtypes. Checks with dynamic sizes run for the first that is no edge case.
    """

    def leaves_of(arg: Any) -> list[Any]:  # noqa: ANN401
        return [leaf for one in arg for leaf in leaves_of(one)] if isinstance(arg, (list, tuple)) else [arg]

    def signature(case: Case) -> Any:  # noqa: ANN401
        args = context.arguments(case)
        tensors = [(path, one.dim(), one.dtype, one.requires_grad) for path, one in iter_tensors(args)]
        constants = [[repr(one) for one in leaves_of(arg) if not isinstance(one, Tensor)] for arg in args]
        return tensors, constants, sorted((name, repr(value)) for name, value in case.kwargs.items())

    wanted = signature(case)
    return [one for one in context.cases if one.op == case.op and signature(one) == wanted]


_RELEASE = release_of(torch.__version__)
_NAME = "{}.{}".format(*_RELEASE)
#: Before 2.4 torch.export is a strict prototype: an error of it does not mean that the op is wrong.
_PROTOTYPE = _RELEASE < (2, 4)
_BACKEND = "aot_eager"  # traces without code generation, so it needs no C++ compiler and no Triton
#: Modules that the first export, and the first compilation with gradients import, which takes seconds.
_LAZY = (
    "torch._functorch.partitioners",
    "torch._inductor.lowering",
    "torch._inductor.pattern_matcher",
    "torch.testing._internal.optests",
    "torch.distributed.tensor.experimental",
    "torch._export.passes.replace_autocast_with_hop_pass",
    "torch._export.passes.replace_set_grad_with_hop_pass",
    "sympy.sets.setexpr",
)
#: Where torch's message ends and its general advice begins.
_CHATTER = re.compile(
    r"The error above occurred|\(unhinted|Hint: |For more information|Developer debug context"
    r"|Set TORCH\w+|Set torch\._dynamo\.config"  # <= 2.6, 2.0
)
#: Advice by pattern of torch's message.
_ADVICE = (
    (
        r"returned non-Tensor",
        "torch.compile does not trace an op that returns a number: return a tensor, or do not claim `compile`",
    ),
    (
        r"fake impl|UnsupportedOperatorException|with fake tensors",
        "register a fake kernel with torch.library.register_fake",
    ),
    (r"data-dependent|DataDependent|Tensor\.item", "do not read a tensor's data, or move that code into an op"),
    (r"graph break|Unsupported|graph_break", "move the code that cannot be traced into an op with a fake kernel"),
    (r"ConstraintViolation|[Ss]pecializ|Guard failed: .*size", "keep sizes symbolic: no int() and no branch on a size"),
)


def warm_up() -> None:
    """Import what the first compilation needs, and make one, which takes seconds, before any fork.

    Runs no op of an extension and computes no gradient: autograd would start threads, which a fork does not survive.
    torch's inductor registers ops when it is imported, so call this before recording registered ops.
    """
    # A compilation uses fake tensors, after which this process and its forks would not find a GPU.
    compiles = torch.version.cuda is None or not nvidia.may_have_gpu()
    with nvidia.hidden_gpus():
        if compiles:
            with contextlib.suppress(Exception):  # if this torch cannot compile, the checks report it
                torch.compile(lambda x: x.sin() * 2, backend=_BACKEND, fullgraph=True, dynamic=True)(torch.ones(2, 3))
                torch._dynamo.reset()
        for name in _LAZY:
            with contextlib.suppress(Exception):
                importlib.import_module(name)
    # torch measures the time of the guards of each compilation for its log: a fifth of the time of a small compilation.
    if hasattr(getattr(torch._dynamo, "guards", None), "profile_guard_manager"):
        torch._dynamo.guards.profile_guard_manager = lambda *_: 0.0


def opcheck(context: Context, case: Case) -> list[Outcome]:
    """The check "opcheck": `torch.library.opcheck` tests schema, autograd, fake tensors and dynamic AOT dispatch.

    It supports only dispatcher ops: a Python callable has no outcome.
    """
    op = context.overload(case)
    if op is None:
        return []  # a Python callable
    if not hasattr(torch.library, "opcheck"):
        return context.not_run(case, "torch.library.opcheck needs torch 2.4 or newer")
    args = writable(context.arguments(case), mutable(context, case))
    found = torch.library.opcheck(op, args, dict(case.kwargs), raise_exception=False)
    failures = {name: result for name, result in found.items() if result != "SUCCESS"}
    if list(failures) == ["test_aot_dispatch_dynamic"]:
        results = flatten(context.call(case, context.arguments(case, grad=False)))
        if any(bool(one.isnan().any()) for one in results if one.is_floating_point() or one.is_complex()):
            why = "opcheck's test_aot_dispatch_dynamic cannot compare; the other tests pass"
            return context.not_run(case, f"the result contains NaN, which {why}")
    if not failures:
        return context.passed(case, f"{len(found)} tests")
    # One outcome for each failed test, because the causes differ.
    outcomes: list[Outcome] = []
    for name, error in failures.items():
        cause = _one_line(error)
        if name == "test_autograd_registration":
            cause = (
                "the result has a gradient only because the kernel calls torch functions; torch.compile does not have "
                f"it. {no_autograd(case.op)}, or, if the op has no gradient, begin the C++ kernel with "
                "`at::AutoDispatchBelowADInplaceOrView guard;`"
            )
        reason = f"opcheck's {name} fails: {cause}"
        outcomes += context.failed(case, reason, test=name, message=str(error)[:4000])
    return outcomes


def export(context: Context, case: Case) -> list[Outcome]:
    """The check "export": torch.export (non-strict) with fixed, then with dynamic sizes; the programs are run."""
    if _RELEASE < (2, 1):
        return context.not_run(case, "torch.export needs torch 2.1 or newer")
    context.step("export with fixed sizes")
    try:
        failure = _export_once(context, case, None, [case])[0]
    except UnsupportedByTorchError as unsupported:
        return context.not_run(case, str(unsupported))
    if failure:
        return context.failed(case, f"with fixed sizes, {failure}")
    automatic = getattr(getattr(torch.export, "Dim", None), "AUTO", None)
    if automatic is None:
        return context.not_run(case, "fixed sizes pass; testing dynamic sizes needs torch 2.6 or newer")
    plain = [one for one in same_up_to_sizes(context, case) if not one.edge]
    if plain and plain[0] is not case:
        return context.passed(case, f"fixed sizes; the case '{plain[0].name}' tests dynamic sizes")
    context.step("export with dynamic sizes")
    others = [one for one in plain if one is not case]
    failure, free = _export_once(context, case, automatic, [case, *others])
    if failure:
        return context.failed(case, f"with dynamic sizes, {failure}", free=free)
    return context.passed(case, f"{len(free)} dynamic sizes; also right for {len(others)} other cases", free=free)


def _export_once(context: Context, case: Case, dimension: Any, runs: Sequence[Case]) -> tuple[str, list[str]]:  # noqa: ANN401
    """Return what is wrong or "", and the sizes that the export left dynamic. Raises UnsupportedByTorchError."""
    args = context.arguments(case, grad=False)
    tensors = [tensor for _, tensor in iter_tensors(args)]
    names = [str(path) for path, _ in iter_tensors(args)]
    dimensions = [{at: dimension for at, size in enumerate(tensor.shape) if size > 1} for tensor in tensors]
    module = CallModule(tensor_function(case, args))
    try:
        dynamic = {} if dimension is None else {"dynamic_shapes": {"tensors": dimensions}}
        program = torch.export.export(module, (tensors,), **dynamic, **({} if _PROTOTYPE else {"strict": False}))
    except Exception as error:
        if _PROTOTYPE:
            raise UnsupportedByTorchError(f"torch.export (torch {_NAME}) raises {_one_line(error)}") from error
        return f"torch.export raises {_one_line(error)}", []
    free = _free_dimensions(program, len(tensors)) if dimension is not None else [set()] * len(tensors)
    dynamic_names = [f"dimension {at} of {name}" for name, dims in zip(names, free) for at in sorted(dims)]
    cure = "in the fake kernel, keep sizes symbolic (no int(), no branch)"
    if dimension is not None and any(dimensions) and not dynamic_names:
        return f"torch.export makes every size constant: {cure}", dynamic_names
    for run in runs:
        given = context.arguments(run, grad=False)
        others = [tensor for _, tensor in iter_tensors(given)]
        for name, one, other, dims in zip(names, tensors, others, free):
            for at, (size, wanted) in enumerate(zip(one.shape, other.shape)):
                if size != wanted and min(size, wanted) > 1 and at not in dims:
                    what = f"torch.export makes dimension {at} of {name} constant ({size})"
                    return f"{what}, but the case '{run.name}' has {wanted}: {cure}", dynamic_names
        sizes = [both for one, other in zip(tensors, others) for both in zip(one.shape, other.shape)]
        if any(size != wanted and min(size, wanted) < 2 for size, wanted in sizes):
            continue  # a program exported for another size than 0 or 1 does not accept it
        try:
            answer = program.module()(others)
        except Exception as error:
            if _PROTOTYPE:
                reason = f"the program exported by torch {_NAME} raises {_one_line(error)}"
                raise UnsupportedByTorchError(reason) from error
            return f"the exported program raises {_one_line(error)} for the case '{run.name}'", dynamic_names
        if failure := _different(context, run, outputs(answer, given, mutable(context, run))):
            return f"for the case '{run.name}', {failure}", dynamic_names
    return "", dynamic_names


def compiled(context: Context, case: Case) -> list[Outcome]:
    """The check "compile": torch.compile(fullgraph=True), forward and backward, with static, then dynamic sizes."""
    try:
        torch._dynamo.eval_frame.check_if_dynamo_supported()
    except RuntimeError as error:
        return context.not_run(case, sentence(error))
    # The numbers among the arguments stay constant: dynamic=True is for sizes only. Where they are dynamic, torch
    # cannot trace an assignment to a list item with such an index (observed: 2.2 to 2.4). torch 2.0 has no such
    # setting, and needs none.
    config = torch._dynamo.config
    with config.patch(specialize_int=True) if hasattr(config, "specialize_int") else contextlib.nullcontext():
        return _compiled(context, case)


def _compiled(context: Context, case: Case) -> list[Outcome]:
    same = same_up_to_sizes(context, case)
    first, others = next((one for one in same if not one.edge), case), [one for one in same if one is not case]
    for dynamic, runs in ((False, [case]), (True, [case, *others])):
        if dynamic and first is not case:
            return context.passed(case, f"static sizes; the case '{first.name}' tests dynamic sizes")
        kind = "dynamic" if dynamic else "static"
        context.step(f"compile, {kind}")
        torch._dynamo.reset()
        args = context.arguments(case)
        call = torch.compile(tensor_function(case, args), backend=_BACKEND, fullgraph=True, dynamic=dynamic)
        for run in runs:
            try:
                failure = _compiled_once(context, run, call)
            except UnsupportedByTorchError as unsupported:
                return context.not_run(case, f"static sizes pass; {unsupported}" if dynamic else str(unsupported))
            if failure:
                other = "" if run is case else f" for the case '{run.name}'"
                return context.failed(case, f"{kind}{other}: {failure}")
    return context.passed(case, f"static sizes; dynamic sizes over {1 + len(others)} cases")


def _compiled_once(context: Context, case: Case, call: Callable[[Sequence[Tensor]], Any]) -> str:
    """Return what is wrong or "". Raises UnsupportedByTorchError."""
    args = context.arguments(case)
    inputs, given = leaves(args), writable(args, mutable(context, case))
    try:
        answer = outputs(call([tensor for _, tensor in iter_tensors(given)]), given, mutable(context, case))
    except Exception as error:  # noqa: BLE001 (dynamo may raise anything)
        raise_if_unsupported("compile", _RELEASE, error)
        return f"torch.compile(fullgraph=True) raises {_one_line(error)}"
    if failure := _different(context, case, answer):
        return failure
    args = context.arguments(case)
    try:
        expected = _gradients(leaves(args), outputs_of(context, case, args))
    except Exception:  # noqa: BLE001 (the check "gradients" reports it)
        return ""
    try:
        gradients = _gradients(inputs, answer)
    except Exception as error:  # noqa: BLE001
        raise_if_unsupported("compile", _RELEASE, error)
        return f"the compiled backward raises {_one_line(error)}"
    if context.device not in case.deterministic:
        return ""  # the two calls have other random numbers, and so other gradients
    return compare(gradients, expected, case, case.dtypes[0], "the compiled gradient") or ""


def _gradients(inputs: Sequence[Tensor], answer: Outputs) -> list[Tensor]:
    """Return the gradients of the sum of all results with respect to the inputs."""
    ends = differentiable(answer.tensors)
    return backward(ends, inputs, [torch.ones_like(one) for one in ends]) if inputs and ends else []


def _different(context: Context, case: Case, answer: Outputs) -> str:
    """Return how the traced result differs from the op's own, or ""; "" also for an op that is not deterministic."""
    if context.device not in case.deterministic:
        return ""
    expected = outputs_of(context, case, context.arguments(case))
    return compare_outputs(answer, expected, case, case.dtypes[0], "the traced result") or ""


def _free_dimensions(program: Any, count: int) -> list[set[int]]:  # noqa: ANN401
    """Return for each tensor the dimensions whose size is dynamic in the exported program."""

    def is_free(size: Any) -> bool:  # noqa: ANN401
        # A size that the fake kernel turned into a number is still a symbol here, with a guard on its value.
        return isinstance(size, torch.SymInt) and size.node.maybe_as_int() is None

    given = set(program.graph_signature.user_inputs)
    values = [node.meta["val"] for node in program.graph.nodes if node.op == "placeholder" and node.name in given]
    free = [{at for at, size in enumerate(value.shape) if is_free(size)} for value in values]
    return free + [set()] * (count - len(free))


def _one_line(error: BaseException) -> str:
    """Return an exception in one line, with advice if there is some."""
    while str(error).lstrip().startswith("from user code:") and error.__cause__ is not None:
        error = error.__cause__  # torch 2.0 puts the location here and the message into the causes
    message = _CHATTER.split(sentence(error))[0].strip().removesuffix("Explanation:").rstrip()
    advice = next((advice for pattern, advice in _ADVICE if re.search(pattern, message)), "")
    return f"{message}: {advice}" if advice else message
