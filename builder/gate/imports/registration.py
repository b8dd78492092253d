"""What the registration of an op lacks: a sentence with the line to add. Standard library only."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path

#: torch's message for an op without a kernel for the device of its arguments.
_NO_KERNEL = re.compile(r"Could not run '(\w+)::([\w.]+)' with arguments from the '(CPU|CUDA)' backend")

#: torch's message for a second TORCH_LIBRARY of one name.
_TWICE = re.compile(r"Only a single (?:STABLE_)?TORCH_LIBRARY can be used to register the namespace (\w+)")

#: A class whose backward is code of the package.
_FUNCTION = re.compile(r"^\s*class \w+\([\w.]*\bFunction\)", re.MULTILINE)


def registered_twice(message: str) -> str:
    """The cure, as an addition to the sentence, if two libraries register one namespace; "" for other messages."""
    found = _TWICE.search(message)
    if not found:
        return ""
    return (
        f": two libraries have `TORCH_LIBRARY({found[1]}, m)`; rename the namespace in one, or use"
        " `TORCH_LIBRARY_FRAGMENT` in both"
    )


def no_schema(op: str) -> str:
    """The sentence for `namespace::name` that no library defines."""
    return f"no op of this name is registered: add {schema_line(op)}, or correct the name in cases.py"


def no_kernel(op: str, message: str) -> str:
    """The sentence for torch's message that an op has no kernel for a device; "" for other messages and other ops."""
    found = _NO_KERNEL.search(message)
    if not found or found[1] != op.partition("::")[0]:
        return ""
    device = found[3].lower()
    other = "cuda" if device == "cpu" else "cpu"
    return (
        f"has no {found[3]} kernel: add {kernel_line(f'{found[1]}::{found[2]}', found[3])} to its C++ source; "
        f'if it needs none, write `devices=("{other}",)` in the Case'
    )


def schema_line(op: str) -> str:
    """The line that defines `namespace::name`, and where it belongs."""
    namespace, _, name = op.partition("::")
    return f'`m.def("{name}(ARGUMENTS) -> RESULT")` to `TORCH_LIBRARY({namespace}, m)`'


def kernel_line(op: str, key: str) -> str:
    """The line that registers a kernel of `namespace::name`, in backquotes."""
    namespace, _, name = op.partition("::")
    return f'`TORCH_LIBRARY_IMPL({namespace}, {key}, m) {{ m.impl("{name.removesuffix(".default")}", &FUNCTION); }}`'


def no_autograd(op: str) -> str:
    """How an op or a Python callable gets a gradient."""
    if "::" not in op:
        return "compute the result in a `torch.autograd.Function`, whose `backward` returns the gradients"
    return f'add `torch.library.register_autograd("{op}", BACKWARD, setup_context=SETUP)` to the package'


def backward_of(name: str, names: Collection[str]) -> str:
    """Which of these names is that of the backward of `name`, such as `leaky_backward` of `leaky_forward`; or ""."""
    base = re.sub(r"(?:^|_)(?:forward|fwd)$", "", name)
    wanted = [f"{base}_{end}".lstrip("_") for end in ("backward", "bwd", "grad")]
    return next((one for one in wanted if one in names and one != name), "")


def autograd_in_python(folders: Sequence[Path], name: str) -> bool:
    """Whether Python files in these folders name an op and define an autograd function, which may call the op."""
    texts = [path.read_text(encoding="utf-8", errors="replace") for one in folders for path in one.rglob("*.py")]
    return any(_FUNCTION.search(text) for text in texts) and any(re.search(rf"\b{name}\b", text) for text in texts)


def lost_gradient(op: str, backward: str) -> str:
    """That an op loses the gradients of its inputs, and the cures; `backward` is the op that computes them, or ""."""
    although = f", although {backward} computes them" if backward else ""
    return (
        f"it has no gradient: the gradients of its inputs are lost{although}; {no_autograd(op)}, or, if it needs none,"
        ' write `not_claimed={"gradients": REASON}` in its Case'
    )


def no_formula(op: str) -> str:
    """That an op has no formula for its gradient, and the two cures."""
    return (
        f"no autograd is registered for the op: {no_autograd(op)}, or, if the op has no gradient, remove `grad=True`"
        " from the inputs of the case"
    )


def eager_gradient(op: str) -> str:
    """Why an op without a formula for its gradient has one in eager mode, and the two cures."""
    return (
        "the result has a gradient only because the kernel calls torch functions; torch.compile does not have it."
        f" {no_autograd(op)}, or, if the op has no gradient, begin the C++ kernel with"
        " `at::AutoDispatchBelowADInplaceOrView guard;`"
    )
