"""The checks that need a GPU: CUDA against the CPU, streams, graphs, a second GPU, compute-sanitizer.

Each runs in a forked child with a GPU at hand; the conductor has asked `where` before and says "not run" otherwise.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from builder.gate import nvidia
from builder.gate.case import Case, Make
from builder.gate.context import Context, compare, flatten, mapped, places, sentence
from builder.gate.discover import load_cases
from builder.gate.outcome import Outcome, Spec
from builder.gate.values import one_dtype

#: How long the inputs of the stream check are kept back, in GPU clock cycles: 0.1 s at 2 GHz. Preparing the launches of
#: an op that has run before takes a hundredth of it.
_DELAY = 200_000_000
_SPOILT = 77  # a number that no case expects
_SANITIZED_SECONDS = 3.0  # as a multiple of the spec's limit; below the patience of the conductor's table

_ALONE = """\
import sys
root, number = sys.argv[1:]
sys.path.insert(0, root)
from builder.gate.gpu import alone
alone(root, int(number))
"""


def where(context: Context) -> dict[str, Any]:  # noqa: ARG001
    """`gpus`, a dict of facts for each; where there is none, `no_gpu` says why."""
    rows = nvidia.smi()
    count, error = _count()
    if not count:
        return {"gpus": [], "no_gpu": nvidia.why_no_gpu(torch.version.cuda, error, rows)}
    gpus = []
    for number in range(count):
        properties = torch.cuda.get_device_properties(number)
        row = nvidia.row_of(rows, number, properties.name, str(getattr(properties, "uuid", "")))
        capability = (properties.major, properties.minor)
        gpus.append(nvidia.gpu_facts(properties.name, capability, properties.total_memory, row))
    return {"gpus": gpus}


def _count() -> tuple[int, str]:
    """How many GPUs torch can use, and what it says if asking is an error."""
    if torch.version.cuda is None:
        return 0, ""
    try:
        # Unlike is_available, which answers False to every fault, this one tells a driver too old from no driver.
        return torch._C._cuda_getDeviceCount(), ""
    except (RuntimeError, AttributeError) as error:
        return 0, sentence(error)


@dataclass(frozen=True)
class Answers:
    """What one call gave: its tensors, and the gradients of the inputs that ask for one."""

    results: list[Tensor]
    gradients: list[Tensor]


def execute(context: Context, case: Case, args: Sequence[Any], cotangents: Sequence[Tensor] | None = None) -> Answers:
    """Call the op, and its backward where an input asks for a gradient and the case claims gradients."""
    results = flatten(context.call(case, args))
    leaves = _leaves(case, args)
    ends = [tensor for tensor in results if tensor.requires_grad]
    if not leaves or not ends:
        return Answers(results, [])
    if cotangents is None:
        cotangents = cotangents_of(results)
    found = torch.autograd.grad(ends, leaves, list(cotangents), allow_unused=True)
    gradients = [torch.zeros_like(leaf) if one is None else one for one, leaf in zip(found, leaves)]
    return Answers([tensor.detach() for tensor in results], gradients)


def _leaves(case: Case, args: Sequence[Any]) -> list[Tensor]:
    if "gradients" in case.not_claimed:
        return []
    return [tensor for _, tensor in places(args) if tensor.requires_grad]


def cotangents_of(results: Sequence[Tensor]) -> list[Tensor]:
    """A gradient for each result that has one: the same numbers on every device."""
    ends = [tensor for tensor in results if tensor.requires_grad]
    return [Make(str(end.device), end.dtype, seed=i + 1).randn(*end.shape) for i, end in enumerate(ends)]


def difference(case: Case, dtype: torch.dtype, have: Answers, want: Answers, other: str) -> str | None:
    """In which way two answers differ, or None; `other` names the second."""
    fault = compare(have.results, want.results, case, dtype)
    if fault:
        return f"{fault}; {other} gives what is expected"
    if len(have.gradients) != len(want.gradients):
        return f"gradients are given for {len(have.gradients)} inputs, {other} gives {len(want.gradients)}"
    for number, (one, two) in enumerate(zip(have.gradients, want.gradients)):
        fault = compare(one, two, case, dtype, f"gradient {number}")
        if fault:
            return f"{fault}; {other} gives what is expected"
    return None


def values(context: Context, case: Case) -> list[Outcome]:
    """gpu-values: every dtype on CUDA, against the reference or invariant, and against the CPU's kernel."""
    errors: dict[str, float] = {}
    for dtype in case.dtypes:
        name = str(dtype).replace("torch.", "")
        context.doing(name)
        fault = one_dtype(context, case, dtype, errors) or _against_cpu(context, case, dtype)
        if fault:
            return [context.failed("gpu-values", case, f"{name}: {fault}", errors=errors)]
    compared = case.reference is not None or case.invariant is not None or "cpu" in case.devices
    if not compared:
        return [context.not_run("gpu-values", case, "executed, but there is nothing to compare it with")]
    figure = f"{len(case.dtypes)} dtype{'s' if len(case.dtypes) > 1 else ''}"
    worst = f", max error {max(errors.values()):.2g}" if errors else ""
    return [context.passed("gpu-values", case, figure + worst, errors=errors)]


def _against_cpu(context: Context, case: Case, dtype: torch.dtype) -> str | None:
    # An invariant stands for an answer that may differ from call to call: it was held already.
    if "cpu" not in case.devices or case.invariant is not None:
        return None
    on_cpu = execute(context, case, context.arguments(case, dtype, "cpu"))
    on_cuda = execute(context, case, context.arguments(case, dtype, "cuda"))
    torch.cuda.synchronize()
    return difference(case, dtype, on_cuda, on_cpu, "the CPU")


def stream(context: Context, case: Case) -> list[Outcome]:
    """gpu-stream: on a side stream whose inputs arrive late. A kernel on any other stream reads them too early."""
    dtype = context.dtype(case)
    # Made before: copying numbers to the GPU may wait for the stream, and so hide a backward on another one.
    cotangents = cotangents_of(flatten(context.call(case, context.arguments(case, dtype))))
    expected = execute(context, case, context.arguments(case, dtype), cotangents)
    ready = context.arguments(case, dtype)
    late = mapped(ready, lambda _, tensor: torch.zeros_like(tensor).requires_grad_(tensor.requires_grad))
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        # Once without delay: a first launch loads the kernel and waits for the device, which hides a wrong stream.
        execute(context, case, context.arguments(case, dtype), cotangents)
    torch.cuda.synchronize()
    arrived = torch.cuda.Event()
    with torch.cuda.stream(side):
        torch.cuda._sleep(_DELAY)
        _fill(late, ready)
        arrived.record()
        have = execute(context, case, late, cotangents)
        waited = arrived.query()
        # Copied here and now: a kernel on another stream that ends later must not be waited for.
        have = Answers([one.clone() for one in have.results], [one.clone() for one in have.gradients])
    torch.cuda.synchronize()
    fault = _difference_or_invariant(case, dtype, have, expected, ready, "the default stream")
    if fault:
        hint = "launch on at::cuda::getCurrentCUDAStream() (stable ABI: aoti_torch_get_current_cuda_stream)"
        return [context.failed("gpu-stream", case, f"on a side stream with late inputs {fault}: {hint}")]
    return [context.passed("gpu-stream", case, "the op waits for its stream itself" if waited else "")]


def _fill(target: Sequence[Any], source: Sequence[Any]) -> None:
    with torch.no_grad():
        for (_, into), (_, out_of) in zip(places(target), places(source)):
            into.copy_(out_of)


def _difference_or_invariant(
    case: Case, dtype: torch.dtype, have: Answers, want: Answers, args: Sequence[Any], other: str
) -> str | None:
    if case.invariant is None:
        return difference(case, dtype, have, want, other)
    try:
        case.invariant(have.results[0] if len(have.results) == 1 else tuple(have.results), *args)
    except AssertionError as error:
        return f"the invariant does not hold: {' '.join(str(error).split()) or 'a bare assert in cases.py'}"
    return None


def graph(context: Context, case: Case) -> list[Outcome]:
    """gpu-graph: captured once, replayed with other numbers; its outputs are spoilt before, so that a replay shows."""
    dtype = context.dtype(case)
    static, other = context.arguments(case, dtype), _other_arguments(case, dtype)
    if not _alike(static, other):
        return [context.not_run("gpu-graph", case, "shapes or numbers of the case's inputs depend on the seed")]
    expected = execute(context, case, _other_arguments(case, dtype))
    cotangents = cotangents_of(_warm_up(context, case, static))
    captured = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(captured):
            have = execute(context, case, static, cotangents)
    except RuntimeError as error:
        hint = "no waiting for the device, no reading of its numbers, no memory but torch's"
        return [context.failed("gpu-graph", case, f"cannot be captured: {sentence(error)}; {hint}")]
    # First the outputs, then the inputs: an op that writes in place answers with one of these.
    for tensor in [*have.results, *have.gradients]:
        if tensor.is_cuda:
            tensor.detach().fill_(_SPOILT)
    _fill(static, other)
    captured.replay()
    torch.cuda.synchronize()
    fault = _difference_or_invariant(case, dtype, have, expected, other, "a call without a graph")
    if fault:
        return [context.failed("gpu-graph", case, f"replayed with other inputs {fault}")]
    return [context.passed("gpu-graph", case)]


def _other_arguments(case: Case, dtype: torch.dtype) -> tuple[Any, ...]:
    """The case's arguments with numbers of another seed."""
    return tuple(case.inputs(Make("cuda", dtype, seed=1)))


def _warm_up(context: Context, case: Case, args: Sequence[Any]) -> list[Tensor]:
    """Capture must meet no first launch: three calls on a side stream, as torch's notes on graphs ask for."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            execute(context, case, args)
        results = flatten(context.call(case, args))
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    return results


def _alike(one: Sequence[Any], two: Sequence[Any]) -> bool:
    """Same shapes, and the same arguments that are no tensors."""
    shapes = [[(place, tensor.shape, tensor.dtype) for place, tensor in places(args)] for args in (one, two)]
    plain = [[arg for arg in args if not list(places([arg]))] for args in (one, two)]
    return shapes[0] == shapes[1] and plain[0] == plain[1]


def second_device(context: Context, case: Case) -> list[Outcome]:
    """gpu-device: inputs on cuda:1 while cuda:0 is current."""
    if torch.cuda.device_count() < 2:
        return [context.not_run("gpu-device", case, "one GPU on this machine; this needs two")]
    dtype = context.dtype(case)
    torch.cuda.set_device(0)
    expected = execute(context, case, context.arguments(case, dtype, "cuda:0"))
    args = context.arguments(case, dtype, "cuda:1")
    have = execute(context, case, args)
    torch.cuda.synchronize(1)
    fault = _difference_or_invariant(case, dtype, have, expected, args, "cuda:0")
    current = torch.cuda.current_device()
    if current != 0:
        fault = f"the op leaves cuda:{current} as the current device, cuda:0 was"
    homes = {f"cuda:{tensor.get_device()}" for tensor in have.results if tensor.is_cuda}
    if homes - {"cuda:1"}:
        fault = f"the result lies on {', '.join(sorted(homes))}, the inputs on cuda:1"
    if fault:
        hint = "make the tensor's device current for the call (c10::cuda::CUDAGuard, torch::stable's DeviceGuard)"
        return [context.failed("gpu-device", case, f"{fault}: {hint}")]
    return [context.passed("gpu-device", case)]


def sanitizer(context: Context, case: Case) -> list[Outcome]:
    """gpu-sanitizer: the case in a process of its own under compute-sanitizer's memcheck."""
    program = nvidia.find_sanitizer()
    if program is None:
        return [
            context.not_run(
                "gpu-sanitizer", case, "compute-sanitizer is not installed (it comes with the CUDA toolkit)"
            )
        ]
    root = Path(__file__).resolve().parents[2]
    number = next(i for i, one in enumerate(context.cases) if one is case)
    command = nvidia.sanitizer_command(program, [sys.executable, "-I", "-c", _ALONE, str(root), str(number)])
    # Torch's cache hands out parts of large blocks: without it every tensor is an allocation that memcheck knows.
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    seconds = context.spec.seconds * _SANITIZED_SECONDS
    try:
        run = subprocess.run(
            command, capture_output=True, text=True, errors="replace", env=environment, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return [context.not_run("gpu-sanitizer", case, f"not done after {seconds:g} s under compute-sanitizer")]
    return [_sanitized(context, case, run.returncode, run.stdout + run.stderr)]


def _sanitized(context: Context, case: Case, status: int, text: str) -> Outcome:
    report = nvidia.read_sanitizer(text)
    if report.errors:
        first = report.findings[0] if report.findings else "see the evidence"
        reason = f"compute-sanitizer finds {report.errors} error{'s' if report.errors > 1 else ''}: {first}"
        return context.failed("gpu-sanitizer", case, reason, report=text[-20000:])
    if report.errors is None:
        last = next((line for line in reversed(text.splitlines()) if line.strip()), f"status {status}")
        return context.not_run(
            "gpu-sanitizer", case, f"compute-sanitizer does not run here: {last}", report=text[-4000:]
        )
    if status:
        last = next((line for line in reversed(text.splitlines()) if line.strip() and not line.startswith("=")), "")
        reason = f"ends with status {status} under compute-sanitizer: {last}"
        return context.failed("gpu-sanitizer", case, reason, report=text[-20000:])
    return context.passed("gpu-sanitizer", case, "0 errors")


def alone(root: str, number: int) -> None:
    """What runs under the sanitizer: one case in each of its dtypes on CUDA, nothing compared."""
    spec = json.loads(Path(root, "spec.json").read_text(encoding="utf-8"))
    for module in spec["imports"]:
        importlib.import_module(module)
    cases, _, fault = load_cases(Path(root))
    if fault:
        raise SystemExit(fault)
    context = Context(Spec(**spec), cases, "cuda")
    for dtype in cases[number].dtypes:
        execute(context, cases[number], context.arguments(cases[number], dtype))
        torch.cuda.synchronize()
