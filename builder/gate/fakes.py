"""The checks "fake" and "devices": an op under FakeTensorMode, beside its real answer and on CUDA without a GPU.

Fake tensors are made from size, strides, dtype and device alone, so "cuda:0" needs no GPU. What torch itself does with
two devices depends on the registration: for a Meta kernel, and for what is composed of torch's own ops, FakeTensorMode
compares the devices; under `register_fake` nobody does, unless the fake does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
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
from builder.gate.context import Context, Place, flatten, mapped, places, sentence
from builder.gate.outcome import Outcome
from builder.gate.releases import BeyondTorchError, raise_if_beyond, release_of

_RELEASE = release_of(torch.__version__)

#: What speaks of devices: torch up to 2.12, torch from 2.13 on, and an op's own words.
_OF_DEVICES = re.compile(
    r"Unhandled FakeTensor Device Propagation|all tensors to be on the same device"  # <= 2.12, >= 2.13
    r"|\bdevices?\b|\bcuda\b|\bcpu\b|\bgpu\b",
    re.IGNORECASE,
)
#: What a fake tensor raises for an op without a fake kernel; torch 2.0 has no name of its own for it.
_UNSUPPORTED = getattr(fake_tensor, "UnsupportedOperatorException", NotImplementedError)
#: torch 2.0 calls the real kernel where there is no fake one, and so would show agreement with nothing.
_MODE = {"allow_fallback_kernels": False} if _UNSUPPORTED is NotImplementedError else {}
#: What needs a driver and so says nothing of the fake: torch.cuda was asked to start.
_NO_DRIVER = re.compile(r"NVIDIA driver|No CUDA GPUs|not compiled with CUDA|CUDA driver|cudaGetDevice", re.IGNORECASE)


def fake(context: Context, case: Case) -> list[Outcome]:
    """The fake's answer against the kernel's: number, shape, dtype, strides and device of the tensors.

    Every dtype claimed, for inputs as they come and, unless the case refuses them, with their dimensions laid out in
    reverse; then on fake CUDA tensors, where the answers must lie on CUDA too.
    """
    compared = 0
    for dtype in case.dtypes:
        for layout, change in _layouts(case):
            args = mapped(context.arguments(case, dtype, grad=False), change)
            name = str(dtype).replace("torch.", "") + layout
            context.doing(f"fake, {name}")
            try:
                with torch.no_grad():
                    real = [_described(tensor) for tensor in flatten(context.call(case, args))]
            except Exception as error:  # noqa: BLE001 (an op may raise anything)
                if layout:
                    continue  # "layouts" says so
                return [context.failed("fake", case, f"the real op raises with {name}: {sentence(error)}")]
            try:
                fault = _compare(context, case, args, real, context.device)
                if fault is None and "cuda" in case.devices and context.device != "cuda":
                    fault = _compare(context, case, args, [{**one, "strides": None} for one in real], "cuda:0")
            except BeyondTorchError as beyond:
                return [context.not_run("fake", case, str(beyond))]
            if fault is not None:
                return [context.failed("fake", case, f"with {name}: {fault}", real=[_text(one) for one in real])]
            compared += 1
    return [context.passed("fake", case, f"{compared} comparisons")]


def devices(context: Context, case: Case) -> list[Outcome]:
    """Each tensor argument in turn on the CPU, the others fake CUDA: refused with a word about devices.

    An argument the case lists as mixed must be taken, and the answer lie on CUDA. 0-dimensional tensors are left out:
    torch lets them through on any device.
    """
    args = context.arguments(case, device="cpu", grad=False)
    movable = [place for place, tensor in places(args) if tensor.dim() > 0]
    bound = [place for place in movable if place.position not in case.mixed_devices]
    if len(bound) == 1:
        movable.remove(bound[0])  # with it on the CPU this is a call on the CPU, and the others are free
    if "cuda" not in case.devices or not movable or len(movable) + len(bound) < 2:
        return []  # no CUDA kernel, or one tensor that has dimensions: no two devices to mix
    try:
        _call(context, case, args, lambda _: "cuda:0")
    except Exception as error:  # noqa: BLE001 (an op may raise anything)
        return [context.not_run("devices", case, f"it fails with all on CUDA too, see fake: {sentence(error)}")]
    answers: dict[str, str] = {}
    faults = []
    for place in movable:
        context.doing(f"devices, {place} on the CPU")
        try:
            fault, answers[str(place)] = _one_on_cpu(context, case, args, place)
        except BeyondTorchError as beyond:
            return [context.not_run("devices", case, str(beyond))]
        faults += [fault] if fault else []
    if faults:
        return [context.failed("devices", case, "; ".join(faults), answers=answers)]
    return [context.passed("devices", case, f"{len(movable)} arguments", answers=answers)]


def _one_on_cpu(context: Context, case: Case, args: Sequence[Any], place: Place) -> tuple[str, str]:
    """What is wrong, or nothing; and what the op answered. Raises BeyondTorchError."""
    name = _name_of(context, case, place)
    mixed = place.position in case.mixed_devices
    try:
        found = _call(context, case, args, lambda here: "cpu" if here == place else "cuda:0")
    except Exception as error:  # noqa: BLE001 (an op may raise anything)
        said = sentence(error)
        if mixed:
            raise_if_beyond("devices", _RELEASE, error)
            return f"with {name} on the CPU, which the case allows, it raises {said}", said
        if _OF_DEVICES.search(said):
            return "", said
        return f"with {name} on the CPU it raises an error that does not speak of devices: {said}", said
    where = sorted({str(tensor.device) for tensor in flatten(found)})
    said = f"answers on {', '.join(where) or 'no device'}"
    if not mixed:
        return (
            f"the fake takes {name} on the CPU beside CUDA tensors and {said}: compare the devices in the fake with "
            "torch._check, or list the argument in mixed_devices if the kernel takes it",
            said,
        )
    if any(one != "cuda:0" for one in where):
        return f"with {name} on the CPU, which the case allows, the fake {said}: it must be cuda:0", said
    return "", said


def _name_of(context: Context, case: Case, place: Place) -> str:
    """The argument as the schema names it."""
    overload = context.overload(case)
    if overload is None:
        return str(place)
    names = [argument.name for argument in overload._schema.arguments]
    if place.position >= len(names):
        return str(place)
    return f"'{names[place.position]}'" + ("" if place.item is None else f"[{place.item}]")


def _layouts(case: Case) -> Iterator[tuple[str, Callable[[Place, Tensor], Tensor]]]:
    yield "", lambda _, tensor: tensor
    if not case.contiguous_only:
        yield " and reversed strides", lambda _, tensor: _reversed_strides(tensor)


def _reversed_strides(tensor: Tensor) -> Tensor:
    order = list(range(tensor.dim()))[::-1]
    return tensor.permute(order).contiguous().permute(order)


def _call(context: Context, case: Case, args: Sequence[Any], device: Callable[[Place], str]) -> Any:  # noqa: ANN401
    """The op's answer to fake tensors like these, on the devices told."""
    mode = FakeTensorMode(shape_env=ShapeEnv(), **_MODE)  # with it an answer's size may depend on data

    def faked(place: Place, tensor: Tensor) -> Tensor:
        shape = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta")
        return FakeTensor(mode, shape, torch.device(device(place)))

    fakes = mapped(args, faked)
    with mode, torch.no_grad():
        return context.call(case, fakes)


def _compare(
    context: Context, case: Case, args: Sequence[Any], real: Sequence[dict[str, Any]], device: str
) -> str | None:
    """What is wrong with the fake's answer on this device, in a sentence; None if nothing is.

    Raises BeyondTorchError.
    """
    place = torch.device("cuda:0" if device == "cuda" else device)
    where = f" on fake {place}" if str(place) != context.device else ""
    try:
        answered = flatten(_call(context, case, args, lambda _: str(place)))
    except Exception as error:  # noqa: BLE001 (an op may raise anything)
        raise_if_beyond("fake", _RELEASE, error)
        return _raised(error, where)
    if len(answered) != len(real):
        return f"the fake answers {len(answered)} tensors{where}, the kernel {len(real)}: return as many"
    for index, (tensor, want) in enumerate(zip(answered, real)):
        name = "" if len(real) == 1 else f" for tensor {index}"
        have = _described(tensor)
        if not _same_shape(have["shape"], want["shape"]):
            return f"the fake answers shape {have['shape']}{name}{where}, the kernel {want['shape']}: compute it alike"
        if have["dtype"] != want["dtype"]:
            return f"the fake answers {have['dtype']}{name}{where}, the kernel {want['dtype']}: pass dtype= in the fake"
        if want["strides"] is not None and not _same_strides(have, want):
            return (
                f"the fake answers strides {have['strides']}{name}{where}, the kernel {want['strides']}: build the "
                "result with new_empty_strided in the fake, or make the kernel's contiguous and use new_empty"
            )
        # Where the kernel was not asked on CUDA, an answer on the CPU is wrong, as every input is on CUDA.
        due = want["device"] if not where else str(place)
        if have["device"] != due:
            return f"the fake answers on {have['device']}{name}{where}, {due} is due: use new_empty of an input in it"
    return None


def _raised(error: Exception, where: str) -> str:
    said = sentence(error)
    if isinstance(error, _UNSUPPORTED):
        return f"there is no fake kernel ({said}): register one with torch.library.register_fake"
    data = isinstance(error, (DataDependentOutputException, DynamicOutputShapeException))
    if data or "data-dependent" in said:
        return (
            f"the fake reads a tensor's data{where}, and there is none ({said}): use sizes only, or "
            "torch.library.get_ctx().new_dynamic_size()"
        )
    if _NO_DRIVER.search(said):
        return f"the fake starts CUDA{where}, where shapes would do: {said}"
    return f"the fake raises{where}: {said}"


def _described(tensor: Tensor) -> dict[str, Any]:
    """What a fake must get right of a tensor; sizes that depend on data stay symbols."""
    return {
        "shape": tuple(tensor.shape),
        "dtype": str(tensor.dtype).replace("torch.", ""),
        "strides": tuple(tensor.stride()) if tensor.layout == torch.strided else (),
        "device": str(tensor.device),
    }


def _text(described: dict[str, Any]) -> str:
    return "{dtype}{shape} strides {strides} on {device}".format(**described)


def _same_shape(have: Sequence[Any], want: Sequence[int]) -> bool:
    # A symbol stands for any size; only its place counts.
    return len(have) == len(want) and all(one == other for one, other in zip(have, want) if _is_number(one))


def _same_strides(have: dict[str, Any], want: dict[str, Any]) -> bool:
    if 0 in want["shape"]:
        return True  # no element lies anywhere
    both = zip(have["strides"], want["strides"], want["shape"])
    return all(one == other for one, other, size in both if size > 1 and _is_number(one))


def _is_number(size: Any) -> bool:  # noqa: ANN401
    return isinstance(size, int) and not isinstance(size, torch.SymInt)
