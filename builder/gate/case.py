"""What a recipe's cases.py is written with: a case says how one op is called, and what must hold of the answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from builder.gate.outcome import CHECKS

#: (rtol, atol) by dtype, where a case names none.
TOLERANCES: Mapping[torch.dtype, tuple[float, float]] = {
    torch.float64: (1e-9, 1e-11),
    torch.float32: (1e-4, 1e-5),
    torch.float16: (2e-3, 2e-3),
    torch.bfloat16: (2e-2, 2e-2),
}


class Make:
    """Makes the tensors of a case: on the device and in the dtype under test, the same numbers on every device.

    Numbers are drawn on the CPU in float64 from a fixed seed, then converted, so CPU and CUDA see the same input.
    """

    def __init__(self, device: str, dtype: torch.dtype, seed: int = 0) -> None:
        self.device = device
        self.dtype = dtype
        self._generator = torch.Generator().manual_seed(seed)

    def randn(self, *shape: int, grad: bool = False) -> Tensor:
        """Normal numbers; `grad` marks an input that gradients are asked for."""
        return self.tensor(torch.randn(shape, dtype=torch.float64, generator=self._generator), grad=grad)

    def rand(self, *shape: int, low: float = 0.0, high: float = 1.0, grad: bool = False) -> Tensor:
        """Uniform numbers in [low, high)."""
        drawn = torch.rand(shape, dtype=torch.float64, generator=self._generator)
        return self.tensor(low + drawn * (high - low), grad=grad)

    def tensor(self, data: Any, *, grad: bool = False) -> Tensor:  # noqa: ANN401
        """Numbers of one's own, in the dtype under test."""
        made = torch.as_tensor(data, dtype=torch.float64).to(device=self.device, dtype=self.dtype)
        return made.requires_grad_() if grad else made

    def integers(self, data: Any, dtype: torch.dtype = torch.int64) -> Tensor:  # noqa: ANN401
        """Indices and the like: an integer or bool dtype of their own, whatever is under test."""
        return torch.as_tensor(data, dtype=dtype).to(self.device)

    def randint(self, low: int, high: int, shape: Sequence[int], dtype: torch.dtype = torch.int64) -> Tensor:
        """Integers in [low, high)."""
        return torch.randint(low, high, tuple(shape), dtype=dtype, generator=self._generator).to(self.device)


@dataclass(frozen=True)
class Case:
    """One way to call one op.

    Attributes:
        op: a dispatcher op, `namespace::name` or `namespace::name.overload`; or the dotted path of a Python callable,
            `torch_scatter.scatter`. A pybind function is covered by its dotted path.
        inputs: makes the positional arguments. Tensors made with `grad=True` are what gradients are asked for.
        name: what is special about it, in a few words; unique for the op.
        kwargs: keyword arguments, none of them tensors.
        reference: the same arguments to the expected result, in plain PyTorch; differentiable if gradients are asked.
        invariant: called with (result, *arguments) where no reference can be given; raises AssertionError.
        dtypes: every dtype the op claims; each is executed.
        tolerances: (rtol, atol) by dtype, before `TOLERANCES`.
        gradcheck: numerical gradients in float64 on the CPU (keep the inputs small).
        edge: "empty" or "batch" when the case stands for such an input; an op with tensors should have an "empty" one.
        deterministic: devices on which two runs give the same bits.
        mixed_devices: positions of tensor arguments that may lie on the CPU beside CUDA ones.
        contiguous_only: the op refuses non-contiguous input with an error and says so in its documentation.
        devices: where the op has a kernel.
        mutates: positions of the arguments a Python callable writes to; of a dispatcher op the schema says it.
        not_claimed: check name to the reason why this op makes no such promise, e.g.
            {"fake": "upstream registers no fake kernel"}. Shown as "not run", never as passed.

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
    not_claimed: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.edge not in {"", "empty", "batch"}:
            raise ValueError(f"{self.op} ({self.name}): edge is {self.edge!r}; write empty, batch or nothing")
        if not self.dtypes:
            raise ValueError(f"{self.op} ({self.name}): dtypes is empty, so nothing would be executed")
        for devices in (self.devices, self.deterministic):
            wrong = [device for device in devices if device not in ("cpu", "cuda")]
            if wrong or isinstance(devices, str):
                raise ValueError(f"{self.op} ({self.name}): {devices!r} must be a list of 'cpu' and 'cuda'")
        unknown = [check for check in self.not_claimed if check not in CHECKS]
        if unknown:
            raise ValueError(
                f"{self.op} ({self.name}): not_claimed names {unknown[0]!r}; there are {', '.join(CHECKS)}"
            )
        if self.reference is not None and self.invariant is not None:
            raise ValueError(f"{self.op} ({self.name}): give a reference or an invariant, not both")

    def tolerance(self, dtype: torch.dtype) -> tuple[float, float]:
        """(rtol, atol) for this dtype; exact for integers and bools."""
        return self.tolerances.get(dtype) or TOLERANCES.get(dtype, (0.0, 0.0))
