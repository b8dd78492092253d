"""`Case` and `Make`, with which a recipe's cases.py says how each op is called and what its result must be."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from builder.gate.check_table import CHECKS

#: (rtol, atol) by dtype, for cases that give none.
TOLERANCES: Mapping[torch.dtype, tuple[float, float]] = {
    torch.float64: (1e-9, 1e-11),
    torch.float32: (1e-4, 1e-5),
    torch.float16: (2e-3, 2e-3),
    torch.bfloat16: (2e-2, 2e-2),
    torch.complex128: (1e-9, 1e-11),
    torch.complex64: (1e-4, 1e-5),
}


class Make:
    """Makes the tensors of a case on the device and in the dtype under test.

    Random numbers are drawn on the CPU in float64 from a fixed seed, then converted, so CPU and CUDA get equal input.
    For a complex dtype, the real and the imaginary part are drawn.
    """

    def __init__(self, device: str, dtype: torch.dtype, seed: int = 0) -> None:
        self.device = device
        self.dtype = dtype
        self._generator = torch.Generator().manual_seed(seed)

    def randn(self, *shape: int, grad: bool = False) -> Tensor:
        """Return normally distributed numbers; `grad` makes the tensor require a gradient."""
        return self.tensor(self._drawn(torch.randn, shape), grad=grad)

    def rand(self, *shape: int, low: float = 0.0, high: float = 1.0, grad: bool = False) -> Tensor:
        """Return uniformly distributed numbers in [low, high)."""
        return self.tensor(self._drawn(torch.rand, shape, low, high - low), grad=grad)

    def tensor(self, data: Any, *, grad: bool = False) -> Tensor:  # noqa: ANN401
        """Return the given numbers in the dtype under test."""
        wide = torch.complex128 if self.dtype.is_complex else torch.float64
        made = torch.as_tensor(data, dtype=wide).to(device=self.device, dtype=self.dtype)
        return made.requires_grad_() if grad else made

    def integers(self, data: Any, dtype: torch.dtype = torch.int64) -> Tensor:  # noqa: ANN401
        """Return the given integers or bools in `dtype`, whatever dtype is under test."""
        return torch.as_tensor(data, dtype=dtype).to(self.device)

    def randint(self, low: int, high: int, shape: Sequence[int], dtype: torch.dtype = torch.int64) -> Tensor:
        """Return random integers in [low, high)."""
        return torch.randint(low, high, tuple(shape), dtype=dtype, generator=self._generator).to(self.device)

    def _drawn(self, draw: Callable[..., Tensor], shape: Sequence[int], low: float = 0.0, width: float = 1.0) -> Tensor:
        """Return random numbers of `draw`, times `width` and plus `low`; for a complex dtype both parts are drawn."""
        parts = range(2 if self.dtype.is_complex else 1)
        drawn = [low + draw(shape, dtype=torch.float64, generator=self._generator) * width for _ in parts]
        return torch.complex(*drawn) if self.dtype.is_complex else drawn[0]


@dataclass(frozen=True)
class Case:
    """One way to call one op.

    Attributes:
        op: a dispatcher op, `namespace::name` or `namespace::name.overload`; or the dotted path of a Python callable,
            `torch_scatter.scatter`. For a pybind function, write its dotted path. For a class of `torch.nn.Module`,
            write how it is constructed from plain values, `chamferdist.ChamferDistance()` or
            `my_ops.Layer(4, bias=False)`: the case calls the module, which has the device and the dtype of the first
            floating-point tensor. Its random parameters are the same in each call; no reference gets them, and no
            gradient of them is checked: for this, write a case of the function that takes them as arguments.
        inputs: a function that makes the positional arguments. The gate computes gradients of tensors made with
            `grad=True`.
        name: describes the case in a few words. Two cases of an op must have different names.
        kwargs: keyword arguments, none of them tensors.
        reference: a function that computes the expected result from the same arguments in plain PyTorch. It must not
            call the op itself. It must be differentiable if an input requires a gradient. It writes to the arguments
            that the op writes to. For an op that returns nothing, or that returns the argument, it may return the new
            values instead.
        invariant: for ops without a reference: a function that is called with (result, *arguments) and raises
            AssertionError if the result is wrong. An argument that the op writes to and does not return is as after the
            call, every other one as before it. The result of an op that returns nothing is a list of the arguments that
            it writes to.
        dtypes: the dtypes that the op supports. The gate runs the case in each.
        tolerances: (rtol, atol) by dtype; overrides `TOLERANCES`.
        gradcheck: whether to compare with numerical gradients on the CPU (keep the inputs small): in float64, or in
            complex128 if every dtype of the case is complex.
        edge: "empty" if the case has an empty tensor, "batch" if it has a batch of one element, "" for any other input.
            Every op with tensors should have an "empty" case.
        deterministic: devices on which repeated runs give the same bits.
        mixed_devices: positions of tensor arguments that may be on the CPU while others are on CUDA.
        contiguous_only: whether the op raises an error for non-contiguous input, and its documentation says so.
        devices: devices for which the op has a kernel.
        mutates: positions of the arguments that a Python callable writes to. Dispatcher ops declare them in the schema.
        side_effects: whether the op changes something else than tensors, such as a file. The process of the extension
            then decides whether the result is right, because other processes see the tensors only.
        not_claimed: maps the name of a check to the reason why the op does not support it, e.g.
            {"fake": "upstream registers no fake kernel"}. The check is then "not run" for this op, never passed.

    """

    op: str
    inputs: Callable[[Make], Sequence[Any]]
    name: str = "plain"
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    reference: Callable[..., Any] | None = None
    invariant: Callable[..., None] | None = None
    dtypes: Sequence[torch.dtype] = (torch.float32,)
    tolerances: Mapping[torch.dtype, tuple[float, float]] = field(default_factory=dict)
    gradcheck: bool = False
    edge: str = ""
    deterministic: Sequence[str] = ("cpu", "cuda")
    mixed_devices: Sequence[int] = ()
    contiguous_only: bool = False
    devices: Sequence[str] = ("cpu", "cuda")
    mutates: Sequence[int] = ()
    side_effects: bool = False
    not_claimed: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        where = f"{self.op} ({self.name})"
        if self.edge not in {"", "empty", "batch"}:
            raise ValueError(f"{where}: edge is {self.edge!r}; it must be 'empty', 'batch' or ''")
        if not self.dtypes:
            raise ValueError(f"{where}: dtypes is empty; list at least one dtype")
        for devices in (self.devices, self.deterministic):
            if isinstance(devices, str) or not {"cpu", "cuda"}.issuperset(devices):
                raise ValueError(f"{where}: {devices!r} must be a list of 'cpu' and 'cuda'")
        if unknown := [check for check in self.not_claimed if check not in CHECKS]:
            named = f"not_claimed names the unknown check {unknown[0]!r}; the checks are {', '.join(CHECKS)}"
            raise ValueError(f"{where}: {named}")
        if self.reference is not None and self.invariant is not None:
            raise ValueError(f"{where}: give a reference or an invariant, not both")

    def tolerance(self, dtype: torch.dtype) -> tuple[float, float]:
        """Return (rtol, atol) for this dtype; (0, 0) for integers and bools."""
        return self.tolerances.get(dtype) or TOLERANCES.get(dtype, (0.0, 0.0))
