"""What the registration of an op lacks: a sentence with the line to add. Standard library only."""

from __future__ import annotations

import re
from collections.abc import Collection

#: torch's message for an op without a kernel for the device of its arguments.
_NO_KERNEL = re.compile(r"Could not run '(\w+)::([\w.]+)' with arguments from the '(CPU|CUDA)' backend")


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
