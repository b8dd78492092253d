"""Ops with one defect each. Otherwise each op is the product of two float tensors, with gradients and a fake kernel."""

from __future__ import annotations

import ctypes
import importlib
import os
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

__all__ = ["branching", "uncovered"]

KERNELS = ctypes.CDLL(str(Path(__file__).with_name("libkernels.so")))
KERNELS.sample_start()
importlib.import_module("sample_defective._bound")
LIBRARY = torch.library.Library("sample_defective", "DEF")
SUFFIX = {torch.float32: "f32", torch.float64: "f64"}

Kernel = Callable[[Tensor, Tensor], Tensor]


def branching(x: Tensor, weight: Tensor) -> Tensor:
    """Reads a number from a tensor, which no graph supports."""
    return x * weight if x.sum().item() > 0 else weight * x


def uncovered(x: Tensor) -> Tensor:
    """A public function without a case."""
    return x


def require_same_shapes(x: Tensor, weight: Tensor) -> None:
    """Raise unless device, dtype and shape of the arguments agree."""
    torch._check(x.device == weight.device, lambda: f"x is on {x.device}, weight on {weight.device}")
    torch._check(x.dtype == weight.dtype, lambda: f"x is {x.dtype}, weight {weight.dtype}")
    torch._check(x.shape == weight.shape, lambda: f"x has shape {x.shape}, weight {weight.shape}")


def native(name: str, x: Tensor, weight: Tensor) -> Tensor:
    """Call the C kernel with this name."""
    require_same_shapes(x, weight)
    out = torch.empty(x.shape, dtype=x.dtype)
    kernel = getattr(KERNELS, f"{name}_{SUFFIX[x.dtype]}")
    kernel(*(ctypes.c_void_p(t.data_ptr()) for t in (x, weight, out)), ctypes.c_long(x.numel()))
    return out


def multiply(x: Tensor, weight: Tensor) -> Tensor:
    """The correct kernel."""
    return native("multiply", x.contiguous(), weight.contiguous())


def by(name: str) -> Kernel:
    """Return a C kernel with a defect."""
    return lambda x, weight: native(name, x.contiguous(), weight.contiguous())


def correct_fake(x: Tensor, weight: Tensor) -> Tensor:
    """The correct fake kernel."""
    require_same_shapes(x, weight)
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def save(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:  # noqa: ARG001 (torch passes it by name)
    """Save what the gradients need."""
    ctx.save_for_backward(*inputs)


def product_rule(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    """The correct gradients."""
    x, weight = ctx.saved_tensors
    return grad * weight, grad * x


def op(
    name: str,
    kernel: Kernel = multiply,
    *,
    cuda: bool = True,
    fake: Kernel | None = correct_fake,
    gradients: Callable[[Any, Tensor], Any] | None = product_rule,
    cpu: bool = True,
) -> None:
    """Define an op; whatever is not given is correct."""
    LIBRARY.define(f"{name}(Tensor x, Tensor weight) -> Tensor")
    if cpu:
        LIBRARY.impl(name, kernel, "CPU")
    if cuda:
        LIBRARY.impl(name, lambda x, weight: (x * weight).contiguous(), "CUDA")
    if fake is not None:
        torch.library.register_fake(f"sample_defective::{name}", fake, lib=LIBRARY)
    if gradients is not None:
        torch.library.register_autograd(f"sample_defective::{name}", gradients, setup_context=save, lib=LIBRARY)


# --- registration and fake kernels
op("no_cuda", cuda=False)
op("no_cpu", cpu=False)
op("no_autograd", gradients=None)
op("no_fake", fake=None)
op("fake_shape", fake=lambda x, weight: correct_fake(x, weight).new_empty(x.shape[0], x.shape[1] + 1))
op("fake_dtype", fake=lambda x, weight: torch.empty_like(correct_fake(x, weight), dtype=torch.float16))
op("fake_device", fake=lambda x, weight: torch.empty_like(correct_fake(x, weight), device="cpu"))
op("fake_mixed", fake=lambda x, _: torch.empty_like(x, memory_format=torch.contiguous_format))
op("fake_frozen", fake=lambda x, weight: x.new_empty(int(correct_fake(x, weight).shape[0]), x.shape[1]))


def triples_(x: Tensor) -> None:
    """Returns nothing; its case expects that it doubles its argument."""
    x.mul_(3)


LIBRARY.define("triples_(Tensor(a!) x) -> ()")
LIBRARY.impl("triples_", triples_, "CPU")
LIBRARY.impl("triples_", triples_, "CUDA")
torch.library.register_fake("sample_defective::triples_", lambda _: None, lib=LIBRARY)


def columns_first(x: Tensor, weight: Tensor) -> Tensor:
    """Returns non-contiguous rows, unlike the fake kernel."""
    return multiply(x, weight).t().contiguous().t()


op("fake_strides", columns_first)


# --- gradients and strides
def one_percent(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    """One percent too large."""
    x, weight = ctx.saved_tensors
    return grad * weight * 1.01, grad * x


op("gradient_percent", gradients=one_percent)


def misread(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Passes the gradient's pointer to a kernel that assumes contiguous memory."""
    x, weight = ctx.saved_tensors
    backward = torch.ops.sample_defective.misread_backward
    return backward(grad, weight), backward(grad, x)


op("misread_backward", lambda x, weight: native("multiply", x, weight.contiguous()))
op("misread_gradient", gradients=misread)
op("misread_input", lambda x, weight: native("multiply", x, weight))


# --- numbers
def through_float32(x: Tensor, weight: Tensor) -> Tensor:
    """Computes float64 in float32."""
    return multiply(x.float(), weight.float()).to(x.dtype)


def no_half(x: Tensor, weight: Tensor) -> Tensor:
    """Has no kernel for a dtype that the case lists."""
    torch._check(x.dtype in SUFFIX, lambda: f"sample: no kernel for {x.dtype}")
    return multiply(x, weight)


def not_a_number(x: Tensor, weight: Tensor) -> Tensor:
    """Returns NaN as the first number."""
    out = multiply(x, weight)
    out.view(-1)[:1] = float("nan")
    return out


_calls = 0
_warm = False


def one_bit_off(out: Tensor) -> Tensor:
    """Change each number by its last bit, far within any tolerance."""
    return torch.nextafter(out, torch.full_like(out, float("inf")))


def flickering(x: Tensor, weight: Tensor) -> Tensor:
    """Every second call is one bit off, as with two alternating buffers."""
    global _calls  # noqa: PLW0603
    _calls += 1
    out = multiply(x, weight)
    return one_bit_off(out) if _calls % 2 else out


def warming(x: Tensor, weight: Tensor) -> Tensor:
    """The first call is one bit off, as if later calls used a faster algorithm."""
    global _warm
    out = multiply(x, weight)
    _warm, cold = True, not _warm
    return one_bit_off(out) if cold else out


op("float64_value", through_float32)
op("half_missing", no_half)
op("nan_right")
op("nan_wrong", not_a_number)
op("flickering", flickering)
op("warming", warming)

# --- memory
op("past_end", by("past_end"))
op("input_write", by("input_write"))
op("unfinished", by("unfinished"))


def hungry(x: Tensor, weight: Tensor) -> Tensor:
    """Allocates 100 GiB."""
    torch.empty(100 << 30, dtype=torch.uint8)
    return multiply(x, weight)


def greedy(x: Tensor, weight: Tensor) -> Tensor:
    """Allocates 3 GiB, which the machine has but the gate's limit does not allow."""
    torch.empty(3 << 30, dtype=torch.uint8)
    return multiply(x, weight)


op("hungry", hungry)
op("greedy", greedy)


# --- crashes and processes
def endless(x: Tensor, weight: Tensor) -> Tensor:
    """Loops forever for empty input, after it started a program in a new session."""
    if not x.numel():
        subprocess.Popen(["sleep", "3600"], start_new_session=True)
    return native("endless", x.contiguous(), weight.contiguous())


op("endless", endless)
op("empty_crash", by("empty_crash"))
op("aborting", by("aborting"))
op("segfault", by("segfault"))
op("exiting", by("exiting"))


def quitting(*_: Tensor) -> Tensor:
    """Exits with status 0."""
    raise SystemExit(0)


def thread_left(x: Tensor, weight: Tensor) -> Tensor:
    """Starts a thread that runs for an hour."""
    threading.Thread(target=time.sleep, args=(3600,)).start()
    return multiply(x, weight)


def child_left(x: Tensor, weight: Tensor) -> Tensor:
    """Starts a program in a new session that runs for an hour."""
    subprocess.Popen(["sleep", "3600"], start_new_session=True)
    return multiply(x, weight)


def chatty(x: Tensor, weight: Tensor) -> Tensor:
    """Prints 100 MB."""
    for _ in range(100):
        os.write(1, b"printed " * (1 << 17))
    return multiply(x, weight)


def forking(x: Tensor, weight: Tensor) -> Tensor:
    """Returns in two processes."""
    os.fork()
    return multiply(x, weight)


def descriptors_closed(x: Tensor, weight: Tensor) -> Tensor:
    """Closes every file descriptor, as a daemon does at its start."""
    os.closerange(3, 1024)
    return multiply(x, weight)


op("quitting", quitting)
op("forking", forking)
op("descriptors_closed", descriptors_closed)
op("thread_left", thread_left)
op("child_left", child_left)
op("chatty", chatty)

# --- cases
op("uncased")
op("inputs_raise")
op("wrong_reference")
