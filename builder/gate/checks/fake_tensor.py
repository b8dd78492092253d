"""The checks "fake" and "devices": an op under FakeTensorMode, compared with its real result, and on fake CUDA tensors.

A fake tensor has only size, strides, dtype and device, so "cuda:0" needs no GPU. For a Meta kernel, and for an op
composed of torch's own ops, FakeTensorMode compares the devices; with `register_fake` the fake kernel must do it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from builder.gate.case import Case
from builder.gate.context import Context, TensorPath, dtype_name, iter_tensors, map_tensors, sentence, values_of
from builder.gate.outcome import Outcome
from builder.gate.torch_limits import NO_GPU, UnsupportedByTorchError, raise_if_unsupported, release_of

_RELEASE = release_of(torch.__version__)

_ACCEPTS = "the fake kernel accepts"
#: The kind of a result that is no tensor.
_NUMBER = "a number"
#: Errors about devices: torch up to 2.12, torch since 2.13, and messages of ops.
_OF_DEVICES = re.compile(
    r"Unhandled FakeTensor Device Propagation|all tensors to be on the same device"  # <= 2.12, >= 2.13
    r"|\bdevices?\b|\bcuda\b|\bcpu\b|\bgpu\b",
    re.IGNORECASE,
)
#: Raised for an op without a fake kernel; torch 2.0 has no special exception for this.
_UNSUPPORTED = getattr(fake_tensor, "UnsupportedOperatorException", NotImplementedError)
#: torch 2.0 would call the real kernel if there is no fake kernel, and the comparison would always pass.
_MODE = {"allow_fallback_kernels": False} if _UNSUPPORTED is NotImplementedError else {}


def fake(context: Context, case: Case) -> list[Outcome]:
    """The check "fake": the fake kernel returns tensors of the same number, shape, dtype, strides and device.

    A number among the results must be a number there too. It has no device.

    For every dtype, with contiguous inputs and, unless the case has `contiguous_only`, with reversed strides; then with
    fake CUDA tensors, whose results must be on CUDA too.
    """
    compared = 0
    for dtype in case.dtypes:
        for layout in ("",) if case.contiguous_only else ("", " and reversed strides"):
            args = context.arguments(case, dtype, grad=False)
            if layout:
                args = map_tensors(args, lambda _, tensor: _reversed_strides(tensor))
            name = dtype_name(dtype) + layout
            context.step(f"fake, {name}")
            try:
                with torch.no_grad():
                    real = [_described(value) for value in values_of(context.call(case, args))]
            except Exception as error:  # noqa: BLE001 (an op may raise anything)
                if layout:
                    continue  # the check "layouts" reports it
                return context.failed(case, f"with {name} the real op raises {sentence(error)}")
            try:
                failure = _compare(context, case, args, real, context.device)
                if failure is None and "cuda" in case.devices and context.device != "cuda":
                    failure = _compare(context, case, args, [{**one, "strides": None} for one in real], "cuda:0")
            except UnsupportedByTorchError as unsupported:
                return context.not_run(case, str(unsupported))
            if failure is not None:
                return context.failed(case, f"with {name}: {failure}")
            compared += 1
    return context.passed(case, f"{compared} comparisons")


def devices(context: Context, case: Case) -> list[Outcome]:
    """The check "devices": one tensor argument on the CPU, the others on fake CUDA, must raise an error about devices.

    An argument in `mixed_devices` must be accepted, and the result must be on CUDA. 0-dimensional tensors are skipped:
    torch accepts them on any device.
    """
    args = context.arguments(case, device="cpu", grad=False)
    movable = [path for path, tensor in iter_tensors(args) if tensor.dim() > 0]
    bound = [path for path in movable if path.position not in case.mixed_devices]
    if len(bound) == 1:
        movable.remove(bound[0])  # with this one on the CPU the call runs on the CPU
    if "cuda" not in case.devices or not movable or len(movable) + len(bound) < 2:
        return []  # no CUDA kernel, or only one tensor with dimensions
    try:
        _call(context, case, args, lambda _: "cuda:0")
    except Exception as error:  # noqa: BLE001 (an op may raise anything)
        reason = "the fake kernel also fails with all tensors on CUDA (see the check 'fake')"
        return context.not_run(case, f"{reason}: {sentence(error)}")
    failures = []
    for path in movable:
        context.step(f"devices, {path} on the CPU")
        try:
            failure = _one_on_cpu(context, case, args, path)
        except UnsupportedByTorchError as unsupported:
            return context.not_run(case, str(unsupported))
        failures += [failure] if failure else []
    if failures:
        registered = f' with torch.library.register_fake("{case.op}"), or in the Meta kernel' if "::" in case.op else ""
        cure = (
            f": in the function{registered}, compare the devices with torch._check, such as torch._check(a.device =="
            " b.device). If the op supports such a call, list the argument in mixed_devices"
        )
        accepted = any(one.startswith(_ACCEPTS) for one in failures)
        return context.failed(case, "; ".join(failures) + cure * accepted)
    return context.passed(case, f"{len(movable)} arguments")


def _one_on_cpu(context: Context, case: Case, args: Sequence[Any], path: TensorPath) -> str:
    """Return what is wrong or "". Raises UnsupportedByTorchError."""
    overload = context.overload(case)
    names = [argument.name for argument in overload._schema.arguments] if overload else []
    name = str(path)
    if path.position < len(names):
        name = f"'{names[path.position]}'" + ("" if path.item is None else f"[{path.item}]")
    mixed = path.position in case.mixed_devices
    try:
        result = _call(context, case, args, lambda here: "cpu" if here == path else "cuda:0")
    except Exception as error:  # noqa: BLE001 (an op may raise anything)
        message = sentence(error)
        if mixed:
            raise_if_unsupported("devices", _RELEASE, error)
            return f"with {name} on the CPU, which the case allows, the op raises {message}"
        if _OF_DEVICES.search(message):
            return ""
        return f"with {name} on the CPU the op raises an error that does not mention devices: {message}"
    devices = sorted({str(value.device) for value in values_of(result) if isinstance(value, Tensor)})
    returned = f"returns {', '.join(devices) + ' tensors' if devices else 'no tensor'}"
    if not mixed:
        return f"{_ACCEPTS} {name} on the CPU although the other tensors are on CUDA, and {returned}"
    if devices in ([], ["cuda:0"]):
        return ""
    return f"with {name} on the CPU, which the case allows, the fake kernel {returned}: it must create them on cuda:0"


def _reversed_strides(tensor: Tensor) -> Tensor:
    order = list(range(tensor.dim()))[::-1]
    return tensor.permute(order).contiguous().permute(order)


def _call(context: Context, case: Case, args: Sequence[Any], device: Callable[[TensorPath], str]) -> Any:  # noqa: ANN401
    """Call the op with fake tensors like these on the given devices."""
    mode = FakeTensorMode(shape_env=ShapeEnv(), **_MODE)  # with a ShapeEnv the size of a result may depend on data

    def faked(path: TensorPath, tensor: Tensor) -> Tensor:
        shape = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta")
        return FakeTensor(mode, shape, torch.device(device(path)))

    fakes = map_tensors(args, faked)
    with mode, torch.no_grad():
        return context.call(case, fakes)


def _compare(
    context: Context, case: Case, args: Sequence[Any], real: Sequence[dict[str, Any]], device: str
) -> str | None:
    """Return what is wrong with the fake kernel's result on this device as a sentence, or None.

    Raises UnsupportedByTorchError.
    """
    target = torch.device("cuda:0" if device == "cuda" else device)
    where = f"with fake inputs on {target}, " if str(target) != context.device else ""
    try:
        results = values_of(_call(context, case, args, lambda _: str(target)))
    except Exception as error:  # noqa: BLE001 (an op may raise anything)
        raise_if_unsupported("fake", _RELEASE, error)
        return _raised(error, where, case.op, context.spec.imports[:1])
    if len(results) != len(real):
        return f"{where}the fake kernel returns {len(results)} results, the real kernel {len(real)}"
    for index, (result, want) in enumerate(zip(results, real)):
        name = "" if len(real) == 1 else f" for result {index}"
        have = _described(result)
        if have["kind"] != want["kind"]:
            return f"{where}the fake kernel returns {have['kind']}{name}, the real kernel {want['kind']}"
        if have["kind"] == _NUMBER:
            continue
        # A symbol matches any size.
        same = [one == other for one, other in zip(have["shape"], want["shape"]) if isinstance(one, int)]
        if len(have["shape"]) != len(want["shape"]) or not all(same):
            return f"{where}the fake kernel returns shape {have['shape']}{name}, the real kernel {want['shape']}"
        if have["dtype"] != want["dtype"]:
            return (
                f"{where}the fake kernel returns {have['dtype']}{name}, the real kernel {want['dtype']}: "
                "set dtype= in the fake kernel"
            )
        strides = zip(have["strides"], want["strides"] or (), want["shape"])
        wrong = [one for one, other, size in strides if size > 1 and isinstance(one, int) and one != other]
        if wrong and 0 not in want["shape"]:  # the strides of a tensor without elements mean nothing
            return (
                f"{where}the fake kernel returns strides {have['strides']}{name}, the real kernel {want['strides']}: "
                "use new_empty_strided in the fake kernel, or make the real result contiguous and use new_empty"
            )
        # The real kernel did not run on CUDA: with every input on CUDA the result must be there too.
        expected = want["device"] if not where else str(target)
        if have["device"] != expected:
            return (
                f"{where}the fake kernel returns a tensor on {have['device']}{name}; it must be on {expected}: "
                "use new_empty of an input"
            )
    return None


def _raised(error: Exception, where: str, op: str, imports: Sequence[str]) -> str:
    message = sentence(error)
    if isinstance(error, _UNSUPPORTED):
        return (
            f"there is no fake kernel ({message}): in the package {''.join(imports)}, register a function with "
            f'torch.library.register_fake("{op}"), which compares the devices of the tensors with torch._check and '
            "returns a tensor like the result"
        )
    data = isinstance(error, (DataDependentOutputException, DynamicOutputShapeException))
    if data or "data-dependent" in message:
        return (
            f"{where}the fake kernel reads data of a fake tensor ({message}): use only sizes, or "
            "torch.library.get_ctx().new_dynamic_size()"
        )
    if NO_GPU.search(message):
        return f"{where}the fake kernel initialises CUDA; use only shapes: {message}"
    return f"{where}the fake kernel raises an exception: {message}"


def _described(value: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return what a fake kernel must compute; sizes that depend on data stay symbols."""
    if not isinstance(value, Tensor):
        return {"kind": _NUMBER}
    return {
        "kind": "a tensor",
        "shape": tuple(value.shape),
        "dtype": dtype_name(value.dtype),
        "strides": tuple(value.stride()) if value.layout == torch.strided else (),
        "device": str(value.device),
    }
