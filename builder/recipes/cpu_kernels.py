"""Which functions of one CUDA file are the CUDA kernel and the CPU kernel of one op, read from names and bodies."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from builder.recipes.host_functions import Function

_ERROR = r"(?:throw|TORCH_CHECK|AT_ERROR|AT_ASSERT\w*|C10_THROW_ERROR)\b"
_TEXT = r"(?:[^(){};]|\((?:[^()]|\([^()]*\))*\))*"
_DEVICE = r"(?:\bis_(?:cuda|cpu)\(\)|\.device\(\)|\.device_type\(\))"
#: A branch for one device, such as `if (x.is_cuda()) return ...`, `x.is_cuda() ? ...` or `switch (x.device().type())`.
_BRANCH = re.compile(
    rf"\b(?:if|switch) ?\({_TEXT}?{_DEVICE}{_TEXT}\) ?\{{? ?(?!{_ERROR}|[\s{{]|$)|\bis_(?:cuda|cpu)\(\) ?\?"
)
_ELSE_ERROR = re.compile(rf"\belse ?\{{? ?{_ERROR}")


@dataclass(frozen=True)
class FunctionOp:
    """An op of the user's functions."""

    #: What defines its name, its schema and its fake kernel.
    function: Function
    #: The name of the function for CUDA.
    cuda: str
    #: The name of the function for the CPU, or empty.
    cpu: str = ""
    #: Why `cpu` is a function for the CPU, one sentence, or empty.
    why: str = ""


def has_device_branch(text: str) -> bool:
    """Whether code does different things for tensors on the CPU and on a GPU."""
    return _BRANCH.search(re.sub(r"\s+", " ", text)) is not None


def ops_of(functions: Sequence[Function]) -> list[FunctionOp]:
    """Return the ops of these functions, in their order.

    A function that chooses by the device of its tensors is the kernel for CUDA and for the CPU. The function NAME_cpu
    is the CPU kernel of NAME, or of NAME_cuda without a NAME. NAME_cuda and NAME_cpu become no ops of their own if
    NAME calls them, or if they are the kernels of an op. All these functions have parameters of the same types.
    """
    named = {each.name: each for each in functions}
    ops: list[FunctionOp] = []
    for function in functions:
        base = re.sub(r"_(?:cuda|cpu)$", "", function.name)
        whole, cuda, cpu = (_like(function, named.get(f"{base}{end}")) for end in ("", "_cuda", "_cpu"))
        if function is whole:
            ops.append(_of_one(function, cuda, cpu))
        elif whole and (_calls(whole, function) or function is cpu):
            continue
        elif cuda and cpu and not whole:
            if function is cuda:
                ops.append(FunctionOp(_renamed(cuda, base), cuda.name, cpu.name, _says(base, cpu)))
        else:
            ops.append(FunctionOp(function, function.name))
    return ops


def _of_one(function: Function, cuda: Function | None, cpu: Function | None) -> FunctionOp:
    """The op of a function, which may have helpers for each device."""
    if cuda and not function.result and function.parameters == cuda.parameters and _calls(function, cuda):
        function = replace(function, result=cuda.result)
    if _BRANCH.search(function.body) and not _ELSE_ERROR.search(function.body):
        why = f"{function.name} looks at the device of its tensors: it is used for CUDA and for the CPU"
        return FunctionOp(function, function.name, function.name, why)
    if cpu:
        return FunctionOp(function, function.name, cpu.name, _says(function.name, cpu))
    return FunctionOp(function, function.name)


def _says(op: str, cpu: Function) -> str:
    return f"{cpu.name} is the CPU kernel of {op}"


def _like(one: Function, other: Function | None) -> Function | None:
    """The other function, if it has the same types."""
    return other if other and other.kinds == one.kinds and bool(other.written) == bool(one.written) else None


def _calls(function: Function, other: Function) -> bool:
    return bool(re.search(rf"\b{other.name} ?\(", function.body))


def _renamed(function: Function, name: str) -> Function:
    return replace(function, name=name, schema=name + function.schema.removeprefix(function.name))
