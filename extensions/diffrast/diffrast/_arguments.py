"""What the fake kernels check of their arguments: the same as the compiled ones, in the same words."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ._library import HAS_CUDA


def check(op: str, condition: bool, message: Callable[[], str]) -> None:
    """`torch._check`, which also teaches the compiler what must hold of a symbolic size."""
    torch._check(condition, lambda: f"diffrast.{op}: {message()}")


def check_floating(op: str, name: str, tensor: Tensor) -> None:
    """float32; on the CPU float64 as well."""
    fits = tensor.dtype == torch.float32 or (tensor.dtype == torch.float64 and tensor.device.type != "cuda")
    check(op, fits, lambda: f"{name} must be float32 (or float64 on the CPU)")


def check_like(op: str, like_name: str, like: Tensor, /, **tensors: Tensor) -> None:
    """Dtype and device of `like`. Without the device check mixed devices would pass tracing, and fail in a run."""
    for name, tensor in tensors.items():
        check(op, tensor.dtype == like.dtype, lambda name=name: f"{name} must have the dtype of {like_name}")  # type: ignore[misc]
        check_device(op, name, tensor, like)


def check_index(op: str, name: str, tensor: Tensor, like: Tensor) -> None:
    """int32, on the device of `like`."""
    check(op, tensor.dtype == torch.int32, lambda: f"{name} must be int32")
    check_device(op, name, tensor, like)


def check_device(op: str, name: str, tensor: Tensor, like: Tensor) -> None:
    check(op, tensor.device == like.device, lambda: f"{name} must be on the same device as the others")


def check_shape(op: str, name: str, tensor: Tensor, want: Sequence[int | torch.SymInt | None], meaning: str) -> None:
    """`want` has None where any size will do; `meaning` is how the documentation writes it."""

    def message() -> str:
        return f"{name} must have shape {meaning}, got {tuple(tensor.shape)}"

    check(op, tensor.dim() == len(want), message)
    for have, size in zip(tensor.shape, want):
        if size is not None:
            check(op, have == size, message)


def check_build(op: str, tensor: Tensor) -> None:
    """Refuse a CUDA tensor where no CUDA kernels are: torch would only say that a key is missing.

    Raises:
        RuntimeError: the tensor is on CUDA and this build, or this torch, is without.
    """
    if tensor.is_cuda and not HAS_CUDA:
        raise RuntimeError(
            f"diffrast.{op}: the tensors are on CUDA, but no CUDA kernels are loaded; "
            "rebuild beside a CUDA build of torch with FORCE_CUDA=1"
        )


def alert_not_deterministic(op: str, tensor: Tensor) -> None:
    """What torch's own operators do before they add with atomics, in an order that may change between runs.

    Raises:
        RuntimeError: on CUDA while `torch.use_deterministic_algorithms(True)` is set.
    """
    if not (tensor.is_cuda and torch.are_deterministic_algorithms_enabled()):
        return
    message = f"the CUDA backward of diffrast.{op} does not have a deterministic implementation"
    if not torch.is_deterministic_algorithms_warn_only_enabled():
        raise RuntimeError(f"{message}, but torch.use_deterministic_algorithms(True) is set")
    warnings.warn(message, stacklevel=2)


def refuse_second_derivative(op: str) -> None:
    """Let the backward of `op` be differentiated no further: torch would go on with zeros.

    Raises:
        RuntimeError: when a gradient of `op` is itself differentiated.
    """

    def keep_nothing(ctx: object, inputs: object, output: object) -> None:
        pass

    def refuse(ctx: object, *grads: Tensor) -> None:
        raise RuntimeError(f"diffrast.{op}: can be differentiated once, not twice")

    torch.library.register_autograd(f"diffrast::{op}_backward", refuse, setup_context=keep_nothing)
