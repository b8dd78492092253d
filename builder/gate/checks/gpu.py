"""The checks that need a GPU: CUDA against the CPU, streams, graphs, a second GPU, and compute-sanitizer's memcheck.

Each runs in a forked child on a machine with a GPU: the scheduler calls `where` first to find out.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from builder.gate.amounts import counted
from builder.gate.case import Case, Make
from builder.gate.checks.gradients import backward, differentiable, leaves, seeds
from builder.gate.checks.outputs import Outputs, outputs_of
from builder.gate.checks.values import as_left, broken_invariant, check_each_dtype, compare, compare_outputs, one_dtype
from builder.gate.context import Context, detached, iter_tensors, map_tensors, sentence
from builder.gate.imports.cases_file import load_cases
from builder.gate.outcome import Outcome, Spec
from builder.gate.system import nvidia

#: Delay of the inputs of the stream check in GPU clock cycles: 0.1 s at 2 GHz. Preparing the launches of an op that has
#: run before takes a hundredth of that.
_DELAY = 200_000_000
_OVERWRITTEN = 77  # a number that no case expects
#: Time limit of compute-sanitizer as a multiple of the limit in the spec; below the `time_factor` of the check, which
#: kills the task.
_SANITIZER_FACTOR = 3.0
#: Runs one case under compute-sanitizer, and the line that it prints after the last dtype.
_DONE = "buildfarm-case-done"
_PROGRAM = """\
import sys
root, number = sys.argv[1:]
sys.path.insert(0, root)
from builder.gate.checks.gpu import run_case
run_case(root, int(number))
"""


def where(context: Context) -> dict[str, Any]:  # noqa: ARG001
    """Return `gpus`, a dict of facts for each GPU, and how many processes may use the first one at the same time.

    If there is no GPU, or torch cannot compute on the first one, `gpus` is empty and `no_gpu` is the reason.
    """
    rows = nvidia.smi()
    count, error = _count()
    if not count:
        return {"gpus": [], "no_gpu": nvidia.why_no_gpu(torch.version.cuda, error, rows)}
    found = [torch.cuda.get_device_properties(number) for number in range(count)]
    if error := _unusable("cuda"):
        return {"gpus": [], "no_gpu": f"torch {torch.__version__} cannot compute on the {found[0].name}: {error}"}
    driver = {"driver": rows[0]["driver_version"]} if rows and "driver_version" in rows[0] else {}
    gpus = [{"name": one.name, "sm": f"sm_{one.major}{one.minor}", **driver} for one in found]
    return {"gpus": gpus, nvidia.PROCESSES: nvidia.most_processes(torch.cuda.mem_get_info()[0], rows)}


def _unusable(device: str) -> str:
    """Return why torch's own kernels do not run, or "": torch has none for this GPU, or another process occupies it."""
    try:
        torch.ones(1, device=device).item()
    except RuntimeError as error:
        return sentence(error)
    return ""


def _count() -> tuple[int, str]:
    """Return the number of GPUs that torch can use, and torch's error message or ""."""
    if torch.version.cuda is None:
        return 0, ""
    try:
        # is_available returns False for every error; this call distinguishes an old driver from no driver.
        return torch._C._cuda_getDeviceCount(), ""
    except (RuntimeError, AttributeError) as error:
        return 0, sentence(error)


@dataclass(frozen=True)
class GpuResults:
    """What one call gives, and the gradients of the inputs."""

    outputs: Outputs
    gradients: list[Tensor]

    def map(self, change: Callable[[Tensor], Tensor]) -> GpuResults:
        """Return it with every tensor changed."""
        return GpuResults(self.outputs.map(change), [change(one) for one in self.gradients])


def execute(
    context: Context, case: Case, args: Sequence[Any], cotangents: Sequence[Tensor] | None = None
) -> GpuResults:
    """Call the op, and its backward if an input requires a gradient and the case claims gradients."""
    inputs = [] if "gradients" in case.not_claimed else leaves(args)
    outputs = outputs_of(context, case, args)
    ends = differentiable(outputs.tensors)
    gradients: list[Tensor] = []
    if inputs and ends:
        gradients = backward(ends, inputs, seeds(ends) if cotangents is None else cotangents)
    return GpuResults(outputs.map(Tensor.detach), gradients)


def difference(case: Case, dtype: torch.dtype, have: GpuResults, want: GpuResults, other: str) -> str | None:
    """Return how two results differ as a sentence, or None; `other` names the second one."""
    failure = compare_outputs(have.outputs, want.outputs, case, dtype)
    if failure:
        return f"{failure}; the expected values are those of {other}"
    if len(have.gradients) != len(want.gradients):
        return f"the number of inputs with a gradient is {len(have.gradients)}, but {len(want.gradients)} for {other}"
    for number, (one, two) in enumerate(zip(have.gradients, want.gradients)):
        if failure := compare(one, two, case, dtype, f"gradient {number}", scaled=True):
            return f"{failure}; the expected values are those of {other}"
    return None


def values(context: Context, case: Case) -> list[Outcome]:
    """The check "gpu-values": every dtype on CUDA against the reference or invariant, and against the CPU kernel."""

    def one(context: Context, case: Case, dtype: torch.dtype, errors: dict[str, float]) -> str | None:
        return one_dtype(context, case, dtype, errors) or _against_cpu(context, case, dtype)

    lacks = "" if "cpu" in case.devices else "the case has no reference or invariant, and the op has no CPU kernel"
    return check_each_dtype(context, case, one, lacks)


def _against_cpu(context: Context, case: Case, dtype: torch.dtype) -> str | None:
    # An op with an invariant may give a different result in each call; its invariant was already checked.
    if "cpu" not in case.devices or case.invariant is not None:
        return None
    on_cpu = execute(context, case, context.arguments(case, dtype, "cpu"))
    on_cuda = execute(context, case, context.arguments(case, dtype, "cuda"))
    torch.cuda.synchronize()
    return difference(case, dtype, on_cuda, on_cpu, "the CPU")


def stream(context: Context, case: Case) -> list[Outcome]:
    """The check "gpu-stream": inputs and output gradients arrive late, so a kernel on another stream reads zeros."""
    dtype = case.dtypes[0]
    # Made first: copying numbers to the GPU may wait for the stream, and so hide a backward on the wrong stream.
    cotangents = seeds(differentiable(outputs_of(context, case, context.arguments(case, dtype)).tensors))
    expected = execute(context, case, context.arguments(case, dtype), cotangents)
    ready = context.arguments(case, dtype)
    late = map_tensors(ready, lambda _, tensor: torch.zeros_like(tensor).requires_grad_(tensor.requires_grad))
    late_cotangents = [torch.zeros_like(one) for one in cotangents]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        # Run once without delay: a first launch loads the kernel and waits for the device, which hides a wrong stream.
        execute(context, case, context.arguments(case, dtype), cotangents)
    torch.cuda.synchronize()
    arrived = torch.cuda.Event()
    with torch.cuda.stream(side):
        torch.cuda._sleep(_DELAY)
        _fill(late, ready)
        _fill(late_cotangents, cotangents)
        arrived.record()
        have = execute(context, case, late, late_cotangents)
        waited = arrived.query()
        # Copied on this stream now, so that a kernel on a different stream that ends later does not count.
        have = have.map(Tensor.clone)
    torch.cuda.synchronize()
    failure = _difference_or_invariant(case, dtype, have, expected, ready, "the default stream")
    if failure:
        hint = "launch kernels on at::cuda::getCurrentCUDAStream() (stable ABI: aoti_torch_get_current_cuda_stream)"
        when = "called on a non-default stream while a kernel on it still writes the inputs or output gradients"
        return context.failed(case, f"{when}: {failure}; {hint}")
    return context.passed(case, "the op waits for the stream before it returns" if waited else "")


def _fill(target: Sequence[Any], source: Sequence[Any]) -> None:
    with torch.no_grad():
        for (_, into), (_, out_of) in zip(iter_tensors(target), iter_tensors(source)):
            into.copy_(out_of)


def _difference_or_invariant(
    case: Case, dtype: torch.dtype, have: GpuResults, want: GpuResults, args: Sequence[Any], other: str
) -> str | None:
    if case.invariant is None:
        return difference(case, dtype, have, want, other)
    return broken_invariant(case.invariant, have.outputs.value, as_left(detached(args), have.outputs.beside))


def graph(context: Context, case: Case) -> list[Outcome]:
    """The check "gpu-graph": captured once, outputs overwritten, then replayed with other inputs."""
    dtype = case.dtypes[0]
    # A replay writes to the inputs, so no element of an input may be the memory of another element.
    static = map_tensors(context.arguments(case, dtype), lambda _, tensor: _own_elements(tensor))
    other = _other_arguments(case, dtype)
    shapes = [[(path, one.shape, one.dtype) for path, one in iter_tensors(args)] for args in (static, other)]
    plain = [[arg for arg in args if not list(iter_tensors([arg]))] for args in (static, other)]
    if shapes[0] != shapes[1] or plain[0] != plain[1]:
        reason = "the case cannot be replayed with other inputs: its shapes or non-tensor arguments are random"
        return context.not_run(case, reason)
    expected = execute(context, case, _other_arguments(case, dtype))
    # torch's documentation of graphs requires calls on a side stream before a capture. Each call has new arguments: an
    # in-place op leaves the history of its gradients in them.
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            execute(context, case, context.arguments(case, dtype))
        outputs = outputs_of(context, case, context.arguments(case, dtype))
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    cotangents = seeds(differentiable(outputs.tensors))
    kept = [one.clone() for one in cotangents]
    captured = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(captured):
            have = execute(context, case, static, cotangents)
    except RuntimeError as error:
        hint = "Do not synchronise. Do not read device data on the host. Allocate memory only through torch"
        # CUDA ends a capture that has failed with error 901, which hides the first error.
        hidden = error.__context__ if "due to a previous error during capture" in str(error) else None
        return context.failed(case, f"cannot be captured: {sentence(hidden or error)}. {hint}")
    # Outputs first, then inputs: an in-place op returns one of its inputs, and a backward its output gradient.
    for tensor in [*have.outputs.tensors, *have.gradients]:
        if tensor.is_cuda:
            tensor.detach().fill_(_OVERWRITTEN)
    _fill(static, other)
    _fill(cotangents, kept)
    captured.replay()
    torch.cuda.synchronize()
    failure = _difference_or_invariant(case, dtype, have, expected, other, "a call without a graph")
    if failure:
        return context.failed(case, f"after a replay with other inputs, {failure}")
    return context.passed(case)


def _other_arguments(case: Case, dtype: torch.dtype) -> tuple[Any, ...]:
    """Return the case's arguments with a different seed."""
    return tuple(case.inputs(Make("cuda", dtype, seed=1)))


def _own_elements(tensor: Tensor) -> Tensor:
    """Return the tensor, or a copy if elements of it share memory, as after `expand`."""
    shared = any(size > 1 and not stride for size, stride in zip(tensor.shape, tensor.stride()))
    return tensor.detach().clone().requires_grad_(tensor.requires_grad) if shared else tensor


def second_device(context: Context, case: Case) -> list[Outcome]:
    """The check "gpu-device": inputs on cuda:1 while cuda:0 is the current device."""
    # torch.cuda.device_count() asks NVML, which counts a GPU that is divided by MIG; CUDA finds one part of one GPU.
    if _count()[0] < 2:
        return context.not_run(case, "this machine has one GPU, but the check needs two")
    if error := _unusable("cuda:1"):
        return context.not_run(case, f"torch cannot compute on the second GPU: {error}")
    dtype = case.dtypes[0]
    torch.cuda.set_device(0)
    expected = execute(context, case, context.arguments(case, dtype, "cuda:0"))
    context.step("inputs on cuda:1, and cuda:0 is the current device")
    have = execute(context, case, context.arguments(case, dtype, "cuda:1"))
    torch.cuda.synchronize(1)
    unchanged = context.arguments(case, dtype, "cuda:1")
    failure = _difference_or_invariant(case, dtype, have, expected, unchanged, "cuda:0")
    current = torch.cuda.current_device()
    if current != 0:
        failure = f"the op changes the current device from cuda:0 to cuda:{current}"
    devices = {f"cuda:{tensor.get_device()}" for tensor in have.outputs.tensors if tensor.is_cuda}
    if devices - {"cuda:1"}:
        failure = f"the result is on {', '.join(sorted(devices))}, the inputs are on cuda:1"
    if failure:
        hint = "make the tensors' device current during the call (c10::cuda::CUDAGuard, torch::stable's DeviceGuard)"
        return context.failed(case, f"{failure}: {hint}")
    return context.passed(case)


def sanitizer(context: Context, case: Case) -> list[Outcome]:
    """The check "gpu-sanitizer"."""
    root = Path(__file__).resolve().parents[3]
    number = next(i for i, one in enumerate(context.cases) if one is case)
    command = nvidia.sanitizer_command([sys.executable, "-I", "-c", _PROGRAM, str(root), str(number)])
    if command is None:
        return context.not_run(case, "compute-sanitizer is not installed (it is part of the CUDA toolkit)")
    # torch's caching allocator splits large blocks. Without it every tensor is an allocation that memcheck knows.
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    seconds = context.spec.seconds * _SANITIZER_FACTOR
    try:
        run = subprocess.run(
            command, capture_output=True, text=True, errors="replace", env=environment, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return context.not_run(case, f"the case does not end within {seconds:g} s under compute-sanitizer")
    return _sanitized(context, case, run.returncode, run.stdout + run.stderr)


def _sanitized(context: Context, case: Case, status: int, text: str) -> list[Outcome]:
    report = nvidia.read_sanitizer(text)
    if report.errors and (report.findings or not report.own_error):
        first = report.findings[0] if report.findings else "see the evidence"
        reason = f"compute-sanitizer finds {counted(report.errors, 'error')}: {first}"
        return context.failed(case, reason, report=text[-20000:])
    if report.errors is None or report.own_error:
        last = next((line for line in reversed(text.splitlines()) if line.strip()), f"status {status}")
        reason = f"compute-sanitizer does not work on this machine: {report.own_error or last}"
        return context.not_run(case, reason, report=text[-4000:])
    if status == 0 and _DONE not in text.splitlines():
        # Seen with compute-sanitizer 2024.1: it reports 0 errors of a program that it has not started.
        reason = "compute-sanitizer does not work on this machine: it ends before the case does, and reports 0 errors"
        return context.not_run(case, reason, report=text[-4000:])
    if status:
        last = next((line for line in reversed(text.splitlines()) if line.strip() and not line.startswith("=")), "")
        reason = f"exits with status {status} under compute-sanitizer: {last}"
        return context.failed(case, reason, report=text[-20000:])
    return context.passed(case, "0 errors")


def run_case(root: str, number: int) -> None:
    """Run one case on CUDA in each of its dtypes, without comparing results. Runs under the sanitizer."""
    spec = Spec.read(Path(root))
    for module in dict.fromkeys([*spec.needs_first, *spec.imports]):
        importlib.import_module(module)
    file = load_cases(Path(root))
    if file.problem:
        raise SystemExit(file.problem)
    context, case = Context(spec, file.cases, device="cuda"), file.cases[number]
    for dtype in case.dtypes:
        execute(context, case, context.arguments(case, dtype))
        torch.cuda.synchronize()
    print(f"\n{_DONE}", flush=True)  # noqa: T201
