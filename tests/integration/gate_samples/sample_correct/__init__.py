"""Correct ops of every kind that the gate must pass."""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

__all__ = ["multiply", "normalised"]

KERNELS = ctypes.CDLL(str(Path(__file__).with_name("libkernels.so")))
importlib.import_module("sample_correct._bound")
LIBRARY = torch.library.Library("sample_correct", "DEF")
SUFFIX = {torch.float32: "f32", torch.float64: "f64"}


def normalised(x: Tensor) -> Tensor:
    """Return rows of length one."""
    return multiply(x, (1 / x.norm(dim=1, keepdim=True)).expand_as(x))


def multiply(x: Tensor, weight: Tensor) -> Tensor:
    """Return the elementwise product."""
    product: Tensor = torch.ops.sample_correct.multiply(x, weight)
    return product


# multiply: a kernel in C, gradients, a fake that checks what the kernel checks.
LIBRARY.define("multiply(Tensor x, Tensor weight) -> Tensor")


def _require_same_shapes(x: Tensor, weight: Tensor) -> None:
    torch._check(x.device == weight.device, lambda: f"x is on {x.device}, weight on {weight.device}")
    torch._check(x.dtype == weight.dtype, lambda: f"x is {x.dtype}, weight {weight.dtype}")
    torch._check(x.shape == weight.shape, lambda: f"x has shape {x.shape}, weight {weight.shape}")


def _multiply(x: Tensor, weight: Tensor) -> Tensor:
    _require_same_shapes(x, weight)
    x, weight = x.contiguous(), weight.contiguous()
    out = torch.empty_like(x)
    kernel = getattr(KERNELS, f"multiply_{SUFFIX[x.dtype]}")
    kernel(*(ctypes.c_void_p(t.data_ptr()) for t in (x, weight, out)), ctypes.c_long(x.numel()))
    return out


def _multiply_fake(x: Tensor, weight: Tensor) -> Tensor:
    _require_same_shapes(x, weight)
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _multiply_save(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:  # noqa: ARG001 (torch passes it by name)
    ctx.save_for_backward(*inputs)


def _multiply_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    x, weight = ctx.saved_tensors
    return multiply(grad, weight), multiply(grad, x)


LIBRARY.impl("multiply", _multiply, "CPU")
LIBRARY.impl("multiply", lambda x, weight: (x * weight).contiguous(), "CUDA")
torch.library.register_fake("sample_correct::multiply", _multiply_fake, lib=LIBRARY)
torch.library.register_autograd(
    "sample_correct::multiply", _multiply_backward, setup_context=_multiply_save, lib=LIBRARY
)


def op(schema: str, kernel: Callable[..., Any], fake: Callable[..., Any]) -> None:
    """Define an op whose kernel is written in PyTorch."""
    name = schema.split("(", maxsplit=1)[0]
    LIBRARY.define(schema)
    for key in ("CPU", "CUDA"):
        LIBRARY.impl(name, kernel, key)
    torch.library.register_fake(f"sample_correct::{name}", fake, lib=LIBRARY)


def empty_as(x: Tensor, *_: Any) -> Tensor:
    """The result of most fake kernels."""
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def together(*tensors: Tensor) -> None:
    """Refuse tensors on two devices."""
    for one in tensors:
        torch._check(one.device == tensors[0].device, lambda: f"arguments on {tensors[0].device} and a second device")


# pick: an integer index, half precision, gradients that are summed.
def _pick(table: Tensor, index: Tensor) -> Tensor:
    together(table, index)
    return table[index].contiguous()


def _pick_fake(table: Tensor, index: Tensor) -> Tensor:
    together(table, index)
    return table.new_empty((*index.shape, *table.shape[1:]))


def _pick_save(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:  # noqa: ARG001 (torch passes it by name)
    ctx.save_for_backward(inputs[1])
    ctx.shape = inputs[0].shape


def _pick_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    (index,) = ctx.saved_tensors
    return grad.new_zeros(ctx.shape).index_add(0, index, grad), None


op("pick(Tensor table, Tensor index) -> Tensor", _pick, _pick_fake)
torch.library.register_autograd("sample_correct::pick", _pick_backward, setup_context=_pick_save, lib=LIBRARY)


# halves: two results, one of them not contiguous.
def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    return (x / 2).contiguous(), (x / 2).t().contiguous().t()


def _halves_fake(x: Tensor) -> tuple[Tensor, Tensor]:
    rows, columns = x.shape
    return x.new_empty(rows, columns), x.new_empty(columns, rows).t()


op("halves(Tensor x) -> (Tensor, Tensor)", _halves, _halves_fake)


# double_: changes its argument, as its schema declares.
def _double(x: Tensor) -> None:
    x.mul_(2)


op("double_(Tensor(a!) x) -> ()", _double, lambda _: None)


# blend: a list, an optional tensor, a keyword; integers and floats.
def _blend(parts: list[Tensor], offset: Tensor | None = None, *, scale: int = 1) -> Tensor:
    together(*parts, *([] if offset is None else [offset]))
    added = torch.stack(parts).sum(0, dtype=parts[0].dtype) * scale
    return (added if offset is None else added + offset).contiguous()


def _blend_fake(parts: list[Tensor], offset: Tensor | None = None, **_: Any) -> Tensor:
    together(*parts, *([] if offset is None else [offset]))
    return empty_as(parts[0])


op("blend(Tensor[] parts, Tensor? offset=None, *, int scale=1) -> Tensor", _blend, _blend_fake)


# positive: the size of the result depends on the numbers, as in non-maximum suppression.
def _positive(x: Tensor) -> Tensor:
    return (x > 0).nonzero().squeeze(1)


def _positive_fake(x: Tensor) -> Tensor:
    return x.new_empty(torch.library.get_ctx().new_dynamic_size(), dtype=torch.int64)


op("positive(Tensor x) -> Tensor", _positive, _positive_fake)


# noise: no two runs agree, as its case declares.
def _noise(like: Tensor) -> Tensor:
    return torch.rand_like(like, memory_format=torch.contiguous_format)


op("noise(Tensor like) -> Tensor", _noise, empty_as)


# shifted: the amount may stay on the CPU.
def _shifted(x: Tensor, amount: Tensor) -> Tensor:
    return (x + amount.item()).contiguous()


op("shifted(Tensor x, Tensor amount) -> Tensor", _shifted, empty_as)


# line: two numbers without defaults.
def _line(x: Tensor, slope: float, intercept: float) -> Tensor:
    return (slope * x + intercept).contiguous()


op("line(Tensor x, float slope, float intercept) -> Tensor", _line, lambda x, *_: empty_as(x))

# squared: one implementation for all devices, in terms of other ops.
LIBRARY.define("squared(Tensor x) -> Tensor")
LIBRARY.impl("squared", lambda x: x * x, "CompositeImplicitAutograd")
