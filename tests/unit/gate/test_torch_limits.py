"""Limits of old torch releases are recognised; the same error from a newer torch is a failure."""

from __future__ import annotations

import pytest

from builder.gate.check_table import CHECKS
from builder.gate.torch_limits import (
    LIMITS,
    UnsupportedByTorchError,
    raise_if_unsupported,
    traceback_text,
    why_unsupported,
)

#: Check, release, error of that torch for a correct op, part of the reason.
ERRORS = [
    (
        "compile",
        (2, 0),
        "torch._dynamo.exc.TorchRuntimeError: \n\nfrom user code:\n   File ...\n"
        "RuntimeError: Cannot call sizes() on tensor with symbolic sizes/strides",
        "torch 2.0 does not support symbolic sizes",
    ),
    (
        "compile",
        (2, 0),
        "BackendCompilerFailed: compiler_fn raised RuntimeError: !schema.hasAnyAliasInfo() INTERNAL ASSERT FAILED at "
        "FunctionalizeFallbackKernel.cpp: mutating and aliasing ops should all have codegen'd kernels",
        "torch 2.0 cannot trace an extension's op that writes to its arguments",
    ),
    (
        "compile",
        (2, 2),
        "torch._dynamo.exc.Unsupported: dynamic shape operator: sample_correct.positive.default",
        "torch 2.2 cannot trace an op whose result size depends on data",
    ),
    ("compile", (2, 2), "torch._dynamo.exc.InternalTorchDynamoError: No module named 'numpy'", "without numpy"),
    (
        "fake",
        (2, 0),
        "NotImplementedError: Could not run 'aten::geqrf' with arguments from the 'Meta' backend.",
        "torch 2.0 has no fake kernel for an op of torch",
    ),
    *(
        (
            "fake",
            (2, 2),
            '  File "/env/site-packages/torch/_refs/__init__.py", line 4552, in new_empty\n    return torch.empty(\n'
            '  File "/env/site-packages/torch/cuda/__init__.py", line 302, in _lazy_init\n    torch._C._cuda_init()\n'
            f"RuntimeError: {message}",
            "torch 2.2 initialises CUDA",
        )
        for message in (
            "Found no NVIDIA driver on your system.",
            "CUDA driver initialization failed, you might not have",
        )
    ),
    (
        "fake",
        (2, 3),
        '  File "/env/site-packages/theirs/scatter.py", line 21, in scatter_sum\n'
        "    out = torch.zeros(size, dtype=src.dtype, device=src.device)\n          ^^^^^^^^^^^^^^^^^^^^^\n"
        '  File "/env/site-packages/torch/cuda/__init__.py", line 284, in _lazy_init\n    raise RuntimeError(\n'
        "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use",
        "torch 2.3 initialises CUDA when a fake tensor is created",
    ),
    (
        "devices",
        (2, 0),
        "RuntimeError: Unhandled FakeTensor Device Propagation for ns.op.default, found two different devices",
        "torch 2.0 refuses two devices",
    ),
]


@pytest.mark.parametrize(("check", "release", "error", "reason"), ERRORS)
def test_a_limit_of_torch_is_recognised_and_is_a_failure_of_a_newer_torch(
    check: str, release: tuple[int, int], error: str, reason: str
) -> None:
    assert reason in why_unsupported(check, release, error)
    assert why_unsupported(check, (2, 11), error) == ""


def test_each_limit_has_an_example() -> None:
    shown = [why_unsupported(check, release, error) for check, release, error, _ in ERRORS]
    assert [one for one in LIMITS if not any(one.reason in why for why in shown)] == []
    assert {one.check for one in LIMITS} <= set(CHECKS)


@pytest.mark.parametrize(
    ("check", "error"),
    [
        # errors of the extension: its fake initialises CUDA, is missing, reads data
        ("fake", "RuntimeError: Found no NVIDIA driver on your system."),
        (
            "fake",
            '  File "/env/site-packages/theirs/ops.py", line 2, in fake\n    torch.cuda.current_device()\n'
            '  File "/env/site-packages/torch/cuda/__init__.py", line 674, in current_device\n    _lazy_init()\n'
            '  File "/env/site-packages/torch/cuda/__init__.py", line 302, in _lazy_init\n    torch._C._cuda_init()\n'
            "RuntimeError: Found no NVIDIA driver on your system.",
        ),
        ("fake", "NotImplementedError: Could not run 'ns::op' with arguments from the 'Meta' backend."),
        ("compile", "torch._dynamo.exc.Unsupported: call_method ListVariable() __setitem__"),
        ("export", "RuntimeError: Cannot call sizes() on tensor with symbolic sizes/strides"),
    ],
)
def test_other_errors_of_an_old_torch_are_failures(check: str, error: str) -> None:
    assert why_unsupported(check, (2, 0), error) == ""


def test_the_cause_of_an_exception_is_searched_too() -> None:
    def fails() -> None:
        try:
            raise RuntimeError("Cannot call sizes() on tensor with symbolic sizes/strides")
        except RuntimeError as error:
            raise ValueError("from user code:") from error

    with pytest.raises(ValueError, match="from user code") as caught:
        fails()
    assert "symbolic sizes" in traceback_text(caught.value)
    with pytest.raises(UnsupportedByTorchError, match=r"^torch 2\.0 does not support symbolic sizes"):
        raise_if_unsupported("compile", (2, 0), caught.value)
    raise_if_unsupported("compile", (2, 2), caught.value)
