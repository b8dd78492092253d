"""Finds the public Python functions and modules of a package that take tensors and call the package's ops."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch

from builder.gate.draft.signatures import signature_of, takes_tensor

#: How many calls deep a function is searched for an op.
_DEPTH = 3


def public_callables(imports: Sequence[str], ops: Sequence[str]) -> list[str]:
    """Return the dotted paths of functions and of classes of torch.nn.Module: each once, by its shortest public path.

    A function counts if it is a function of a module in `imports` with a tensor parameter, or if it is in another
    loaded module of these packages and its code names one of the ops. A class counts if its code names one.
    """
    tops = {name.partition(".")[0] for name in imports}
    names = {op.partition("::")[2].partition(".")[0] if "::" in op else op.rpartition(".")[2] for op in ops}
    found: dict[int, str] = {}
    for module in sorted(_modules(tops), key=lambda one: (one.__name__.count("."), one.__name__)):
        for name in getattr(module, "__all__", None) or list(vars(module)):
            value = getattr(module, name, None)
            scripted = type(value).__name__ == "ScriptFunction"  # its module is torch.jit, and it has no code
            is_module = isinstance(value, type) and issubclass(value, torch.nn.Module)
            own = scripted or (getattr(value, "__module__", None) or "").partition(".")[0] in tops
            if name.startswith("_") or not own or not (is_module or scripted or isinstance(value, FunctionType)):
                continue
            path = f"{module.__name__}.{name}"
            text = "" if is_module else _declared(path)
            plain = scripted or (module.__name__ in imports and "Tensor" in text)
            if (text and plain) or ((text or is_module) and _reaches(value, names, _DEPTH, set())):
                found.setdefault(id(value), path)
    return sorted(found.values())


def _declared(path: str) -> str:
    """Return the text of the signature of a function that takes a tensor; "" for any other."""
    try:
        signature = signature_of(path)
    except Exception:  # noqa: BLE001 (a lazy module may run any code)
        return ""
    return signature.text if signature and takes_tensor(signature) else ""


def _modules(tops: set[str]) -> Iterator[ModuleType]:
    for name, module in list(sys.modules.items()):
        top, *below = name.split(".")
        public = top in tops and len(below) <= 1 and not any(part.startswith("_") for part in (top, *below))
        if public and (getattr(module, "__file__", None) or "").endswith(".py"):
            yield module


def _reaches(value: Any, names: set[str], depth: int, seen: set[int]) -> bool:  # noqa: ANN401
    """Whether the code of a function, or of a function or class that it names, names an op."""
    if id(value) in seen or depth < 0:
        return False
    seen.add(id(value))
    if isinstance(value, type):
        members = [*vars(value).values(), getattr(value, "forward", None)]  # `forward` may be that of a base class
        return any(_reaches(getattr(one, "__func__", one), names, depth, seen) for one in members)
    code = getattr(value, "__code__", None)
    if not isinstance(code, CodeType):
        return False
    used = set(_names(code))
    # An op is an attribute, `torch.ops.namespace.op` or `_C.op`, and no global of the function's module.
    scope = getattr(value, "__globals__", {})
    if ("ops" in used and used & names) or any(name in names and name not in scope for name in used):
        return True
    others = (scope[name] for name in used if isinstance(scope.get(name), (FunctionType, type)))
    return any(_reaches(other, names, depth - 1, seen) for other in others)


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
