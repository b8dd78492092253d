"""The operators as torch sees them: shapes without data, gradients, the function to call.

`torch.ops.ms_deform_attn.forward` and `.backward` come from the compiled library. What
torch needs beyond the kernels is written here, since the stable ABI leaves autograd and
fake tensors to Python.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from typing import Any, Callable, Optional

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ._library import HAS_CUDA

_TORCH = tuple(int(part) for part in re.match(r"(\d+)\.(\d+)", torch.__version__).groups())  # type: ignore[union-attr]
_FLOATING = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def _check(condition: Any, message: Callable[[], str]) -> None:
    # torch._check (torch >= 2.1) also teaches the compiler what must hold of a symbolic size.
    if hasattr(torch, "_check"):
        torch._check(condition, lambda: f"ms_deform_attn: {message()}")
    elif not condition:
        raise RuntimeError(f"ms_deform_attn: {message()}")


def _check_shape(tensor: Tensor, name: str, meaning: str, want: Sequence[Any]) -> None:
    def message() -> str:
        return f"{name} must have shape {meaning} = {tuple(want)}, got {tuple(tensor.shape)}"

    _check(tensor.dim() == len(want), message)
    for have, size in zip(tensor.shape, want):
        _check(have == size, message)


def _check_arguments(
    value: Tensor, spatial_shapes: Tensor, level_start_index: Tensor, sampling_loc: Tensor, attn_weight: Tensor
) -> None:
    """What the compiled operators check too, for tensors without data."""
    floating = {"value": value, "sampling_loc": sampling_loc, "attn_weight": attn_weight}
    for name, tensor in floating.items():
        _check(
            tensor.dtype in _FLOATING,
            lambda name=name: f"{name} must be float32, float64, float16 or bfloat16",  # type: ignore[misc]
        )
    index = {"spatial_shapes": spatial_shapes, "level_start_index": level_start_index}
    for name, tensor in index.items():
        _check(tensor.dtype == torch.int64, lambda name=name: f"{name} must be int64")  # type: ignore[misc]
    # register_fake lets mixed devices through: without this the fault shows only at run time.
    for name, tensor in {**index, **floating}.items():
        _check(
            tensor.device == value.device,
            lambda name=name: f"{name} must be on the same device as value",  # type: ignore[misc]
        )
    _check(value.dim() == 4, lambda: f"value must have shape (N, S, M, D), got {tuple(value.shape)}")
    _check(
        spatial_shapes.dim() == 2 and spatial_shapes.shape[1] == 2,
        lambda: f"spatial_shapes must have shape (L, 2), got {tuple(spatial_shapes.shape)}",
    )
    _check(
        sampling_loc.dim() == 6,
        lambda: f"sampling_loc must have shape (N, Lq, M, L, P, 2), got {tuple(sampling_loc.shape)}",
    )
    batch, _, heads, _ = value.shape
    levels = spatial_shapes.shape[0]
    queries, points = sampling_loc.shape[1], sampling_loc.shape[4]
    _check_shape(level_start_index, "level_start_index", "(L,)", (levels,))
    _check_shape(sampling_loc, "sampling_loc", "(N, Lq, M, L, P, 2)", (batch, queries, heads, levels, points, 2))
    _check_shape(attn_weight, "attn_weight", "(N, Lq, M, L, P)", (batch, queries, heads, levels, points))


def _forward_fake(
    value: Tensor, spatial_shapes: Tensor, level_start_index: Tensor, sampling_loc: Tensor, attn_weight: Tensor
) -> Tensor:
    _check_arguments(value, spatial_shapes, level_start_index, sampling_loc, attn_weight)
    batch, _, heads, channels = value.shape
    return value.new_empty((batch, sampling_loc.shape[1], heads * channels))


def _backward_fake(
    value: Tensor,
    spatial_shapes: Tensor,
    level_start_index: Tensor,
    sampling_loc: Tensor,
    attn_weight: Tensor,
    grad_output: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    _check_arguments(value, spatial_shapes, level_start_index, sampling_loc, attn_weight)
    batch, _, heads, channels = value.shape
    _check(grad_output.device == value.device, lambda: "grad_output must be on the same device as value")
    _check(grad_output.dtype == value.dtype, lambda: "grad_output must have the dtype of value")
    _check_shape(grad_output, "grad_output", "(N, Lq, M*D)", (batch, sampling_loc.shape[1], heads * channels))
    # new_empty and not empty_like: the kernels answer contiguous tensors whatever they were given.
    return (
        value.new_empty(value.shape),
        sampling_loc.new_empty(sampling_loc.shape),
        attn_weight.new_empty(attn_weight.shape),
    )


def _alert_not_deterministic(value: Tensor) -> None:
    """What torch's own operators do; the CUDA backward adds to grad_value with atomics."""
    if not (value.is_cuda and torch.are_deterministic_algorithms_enabled()):
        return
    message = "the CUDA backward of ms_deform_attn does not have a deterministic implementation"
    if not torch.is_deterministic_algorithms_warn_only_enabled():
        raise RuntimeError(f"{message}, but torch.use_deterministic_algorithms(True) is set")
    warnings.warn(message, stacklevel=2)


def _setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _gradients(ctx: Any, grad_output: Tensor) -> tuple[Optional[Tensor], ...]:
    inputs = ctx.saved_tensors
    _alert_not_deterministic(inputs[0])
    value, loc, weight = torch.ops.ms_deform_attn.backward(*inputs, grad_output)
    return value, None, None, loc, weight


def _register() -> None:
    """torch >= 2.4: torch.library has it all."""

    def keep_nothing(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    def refuse(ctx: Any, *grads: Tensor) -> None:
        # Without this torch would warn and go on with a wrong (zero) second derivative.
        raise RuntimeError("ms_deform_attn: can be differentiated once, not twice")

    torch.library.register_fake("ms_deform_attn::forward", _forward_fake)
    torch.library.register_fake("ms_deform_attn::backward", _backward_fake)
    torch.library.register_autograd("ms_deform_attn::forward", _gradients, setup_context=_setup_context)
    torch.library.register_autograd("ms_deform_attn::backward", refuse, setup_context=keep_nothing)


def _register_old() -> torch.library.Library:
    """torch 2.0 to 2.3: an autograd.Function under the Autograd key, the fakes under Meta.

    Not impl_abstract: it wants the Python module's name compiled into the library, and only
    two of these versions have it. Under the Meta key fake tensors refuse mixed devices by
    themselves.
    """
    library = torch.library.Library("ms_deform_attn", "IMPL")
    library.impl("forward", _forward_fake, "Meta")
    library.impl("backward", _backward_fake, "Meta")

    class Forward(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Tensor) -> Tensor:
            ctx.save_for_backward(*inputs)
            below = torch._C._AutoDispatchBelowAutograd()  # in torch 2.0 it works while it lives, not by `with`
            try:
                return torch.ops.ms_deform_attn.forward(*inputs)
            finally:
                del below

        backward = staticmethod(once_differentiable(_gradients))

    library.impl("forward", Forward.apply, "Autograd")
    return library  # its registrations end with it


_OLD_LIBRARY = _register() if _TORCH >= (2, 4) else _register_old()


def _check_level_list(levels: Sequence[Sequence[int]], value: Tensor, spatial_shapes: Tensor) -> None:
    # Plain ifs: torch.compile cannot trace a torch._check whose message quotes its subject.
    if len(levels) != spatial_shapes.shape[0]:
        raise RuntimeError(
            f"ms_deform_attn: value_spatial_shapes_list has {len(levels)} levels, "
            f"spatial_shapes has {spatial_shapes.shape[0]}"
        )
    rows = sum(height * width for height, width in levels)
    if rows != value.shape[1]:
        raise RuntimeError(
            f"ms_deform_attn: value_spatial_shapes_list holds {rows} pixels, value has {value.shape[1]} rows"
        )


def ms_deform_attn(
    value: Tensor,
    spatial_shapes: Tensor,
    level_start_index: Tensor,
    sampling_loc: Tensor,
    attn_weight: Tensor,
    im2col_step: int = 64,
    value_spatial_shapes_list: Optional[Sequence[Sequence[int]]] = None,
) -> Tensor:
    r"""Multi-scale deformable attention: a weighted sum of bilinear samples.

    For every batch element n, query q and head m, with the points (l, p) of all levels,

    .. math::
        out[n, q, m] = \sum_{l, p} weight[n, q, m, l, p] \cdot sample(value_l[n, m],\; loc[n, q, m, l, p])

    where a location (x, y) is the pixel position (x·W_l − ½, y·H_l − ½) and pixels outside the
    level are zero: ``grid_sample(2·loc − 1, "bilinear", "zeros", align_corners=False)``.
    Source: equation 3 of Deformable DETR (arXiv 2010.04159) and its published interface.

    Args:
        value: (N, S, M, D), S rows of all levels one after the other, M heads of D channels;
            f32, f64, f16 or bf16. Any D, any batch, any strides.
        spatial_shapes: (L, 2) int64, (H, W) of each level.
        level_start_index: (L,) int64, first row of each level in S.
        sampling_loc: (N, Lq, M, L, P, 2), (x, y) in units of the level's size: [0, 1] is inside.
            Any of the floating dtypes, whatever value has: keep it in f32 beside a 16-bit value.
        attn_weight: (N, Lq, M, L, P), as it is to be applied (softmax done); dtype free as above.
        im2col_step: accepted for its place in the signature and ignored: it never changed the
            result, only how upstream cut the batch.
        value_spatial_shapes_list: spatial_shapes as Python integers, where the caller has them
            (the argument that Hugging Face's interface adds). Checked against the tensors' shapes,
            without waiting for the GPU.

    Returns:
        (N, Lq, M·D) in the dtype of value, contiguous. Sums are made in f32 (f64 for f64).

    Gradients go to value, sampling_loc and attn_weight, each in its own dtype, once
    differentiable. On CUDA the gradient of value is summed by atomics, in an order that may
    change from run to run.

    Raises:
        RuntimeError: a dtype, shape or device is wrong (the message names the argument); on the
            CPU also a level that does not fit in value. CUDA cannot tell without waiting: there
            such a level yields NaN, and nothing outside value is read.
    """
    if value.is_cuda and not HAS_CUDA:
        raise RuntimeError(
            "ms_deform_attn: value is on CUDA, but this build holds no CUDA kernels; "
            "rebuild beside a CUDA build of torch with FORCE_CUDA=1"
        )
    if value_spatial_shapes_list is not None:
        _check_level_list(value_spatial_shapes_list, value, spatial_shapes)
    return torch.ops.ms_deform_attn.forward(value, spatial_shapes, level_start_index, sampling_loc, attn_weight)
