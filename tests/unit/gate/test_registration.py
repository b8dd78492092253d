"""The sentences for ops whose registration lacks something."""

from __future__ import annotations

import pytest

from builder.gate.imports.registration import kernel_line, no_kernel

#: From torch 2.11.
MESSAGE = (
    "Could not run 'mine::scale' with arguments from the 'CPU' backend. This could be because the operator doesn't"
    " exist for this backend, or was omitted during the selective/custom build process (if using custom build)."
)


def test_a_missing_kernel() -> None:
    assert no_kernel("mine::scale", MESSAGE) == (
        'has no CPU kernel: add `TORCH_LIBRARY_IMPL(mine, CPU, m) { m.impl("scale", &FUNCTION); }` to its C++ source; '
        'if it needs none, write `devices=("cuda",)` in the Case'
    )
    assert '`devices=("cpu",)`' in no_kernel("mine::scale", MESSAGE.replace("CPU", "CUDA"))
    assert '"scale.out"' in kernel_line("mine::scale.out", "CUDA")
    assert '"scale"' in kernel_line("mine::scale.default", "CUDA")


@pytest.mark.parametrize(
    ("op", "message"),
    [
        pytest.param("other::scale", MESSAGE, id="an op of another library"),
        pytest.param("mine.scale", MESSAGE, id="a Python callable"),
        pytest.param("mine::scale", MESSAGE.replace("CPU", "Meta"), id="a fake tensor"),
        pytest.param("mine::scale", "mine::scale: x has the wrong shape", id="another error"),
    ],
)
def test_other_messages_get_no_hint(op: str, message: str) -> None:
    assert no_kernel(op, message) == ""
