"""Finds the public Python functions of a package that take tensors and call the package's ops."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from types import CodeType, FunctionType, ModuleType
from typing import Any

from builder.gate.draft.signatures import signature_of, takes_tensor

#: How many calls deep a function is searched for an op.
_DEPTH = 3


def public_functions(imports: Sequence[str], ops: Sequence[str]) -> list[str]:
    """Return the dotted paths: each function once, by its shortest public path.

    A function counts if it is a function of a module in `imports` with a tensor parameter, or if it is in another
    loaded module of these packages and its code names one of the ops.
    """
    tops = {name.partition(".")[0] for name in imports}
    names = _short_names(ops)
    found: dict[int, str] = {}
    for module in sorted(_modules(tops), key=lambda one: (one.__name__.count("."), one.__name__)):
        for name, value in _public(module):
            home = getattr(value, "__module__", None) or ""
            scripted = type(value).__name__ == "ScriptFunction"  # its module is torch.jit, and it has no code
            if (home.partition(".")[0] not in tops and not scripted) or id(value) in found:
                continue
            path = f"{module.__name__}.{name}"
            signature = _signature(path)
            if signature is None or not takes_tensor(signature):
                continue
            declared = module.__name__ in imports and "Tensor" in signature.text
            if declared or scripted or _reaches(value, names, _DEPTH, set()):
                found[id(value)] = path
    return sorted(found.values())


def _signature(path: str) -> Any:  # noqa: ANN401
    try:
        return signature_of(path)
    except Exception:  # noqa: BLE001 (a lazy module may run any code)
        return None


def _modules(tops: set[str]) -> Iterator[ModuleType]:
    for name, module in list(sys.modules.items()):
        private = any(part.startswith("_") for part in name.split("."))
        if (
            name.partition(".")[0] in tops
            and name.count(".") <= 1
            and not private
            and getattr(module, "__file__", "").endswith(".py")
        ):
            yield module


def _public(module: ModuleType) -> Iterator[tuple[str, Any]]:
    listed = getattr(module, "__all__", None)
    for name in listed or list(vars(module)):
        value = getattr(module, name, None)
        if not name.startswith("_") and (isinstance(value, FunctionType) or type(value).__name__ == "ScriptFunction"):
            yield name, value


def _short_names(ops: Sequence[str]) -> set[str]:
    """Return the names of ops without namespace, module and overload."""
    return {op.partition("::")[2].partition(".")[0] if "::" in op else op.rpartition(".")[2] for op in ops}


def _reaches(value: Any, names: set[str], depth: int, seen: set[int]) -> bool:  # noqa: ANN401
    """Whether the code of a function, or of a function or class that it names, names an op."""
    if id(value) in seen or depth < 0:
        return False
    seen.add(id(value))
    if isinstance(value, type):
        return any(_reaches(getattr(one, "__func__", one), names, depth, seen) for one in vars(value).values())
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
