"""What a torch cannot do is told as its own limit, and only there: the same words from a later torch are a fault."""

from __future__ import annotations

import pytest

from builder.gate.outcome import CHECKS
from builder.gate.releases import LIMITS, BeyondTorchError, Limit, beyond, raise_if_beyond, release_of, traced

#: Check, release, what that torch said of a sound op, words of the reason.
SEEN = [
    (
        "compile",
        (2, 0),
        "torch._dynamo.exc.TorchRuntimeError: \n\nfrom user code:\n   File ...\n"
        "RuntimeError: Cannot call sizes() on tensor with symbolic sizes/strides",
        "torch 2.0 takes no symbolic sizes",
    ),
    (
        "compile",
        (2, 0),
        "BackendCompilerFailed: compiler_fn raised RuntimeError: !schema.hasAnyAliasInfo() INTERNAL ASSERT FAILED at "
        "FunctionalizeFallbackKernel.cpp: mutating and aliasing ops should all have codegen'd kernels",
        "torch 2.0 traces no op of an extension that writes to its arguments",
    ),
    (
        "compile",
        (2, 2),
        "torch._dynamo.exc.Unsupported: dynamic shape operator: planted_sound.positive.default",
        "torch 2.2 traces no op whose answer's size depends on numbers",
    ),
    (
        "compile",
        (2, 6),
        "torch._dynamo.exc.Unsupported: dynamic shape operator: planted_sound.positive.default; to enable, set "
        "torch._dynamo.config.capture_dynamic_output_shape_ops = True",
        "capture_dynamic_output_shape_ops",
    ),
    ("compile", (2, 2), "torch._dynamo.exc.InternalTorchDynamoError: No module named 'numpy'", "without numpy"),
    (
        "fake",
        (2, 0),
        "NotImplementedError: Could not run 'aten::geqrf' with arguments from the 'Meta' backend.",
        "torch 2.0 has no fake for one of its own ops",
    ),
    (
        "fake",
        (2, 2),
        '  File "/env/site-packages/torch/_refs/__init__.py", line 4552, in new_empty\n    return torch.empty(\n'
        '  File "/env/site-packages/torch/cuda/__init__.py", line 302, in _lazy_init\n    torch._C._cuda_init()\n'
        "RuntimeError: Found no NVIDIA driver on your system.",
        "torch 2.2 starts CUDA itself",
    ),
    (
        "devices",
        (2, 0),
        "RuntimeError: Unhandled FakeTensor Device Propagation for ns.op.default, found two different devices",
        "torch 2.0 refuses two devices",
    ),
]


@pytest.mark.parametrize(("check", "release", "said", "words"), SEEN)
def test_a_limit_of_torch_is_no_fault_of_the_extension(
    check: str, release: tuple[int, int], said: str, words: str
) -> None:
    assert words in beyond(check, release, said)


@pytest.mark.parametrize(("check", "said"), [(check, said) for check, _, said, _ in SEEN])
def test_what_a_later_torch_says_is_a_fault(check: str, said: str) -> None:
    assert beyond(check, (2, 11), said) == ""


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.reason[:30])
def test_each_limit_was_seen(limit: Limit) -> None:
    assert any(limit.reason in beyond(check, release, said) for check, release, said, _ in SEEN)
    assert set(limit.checks) <= set(CHECKS)


@pytest.mark.parametrize(
    ("check", "said"),
    [
        # the extension's own: its fake starts CUDA, has no fake, reads a number
        ("fake", "RuntimeError: Found no NVIDIA driver on your system."),
        ("fake", "NotImplementedError: Could not run 'ns::op' with arguments from the 'Meta' backend."),
        ("compile", "torch._dynamo.exc.Unsupported: call_method ListVariable() __setitem__"),
        ("export", "RuntimeError: Cannot call sizes() on tensor with symbolic sizes/strides"),
    ],
)
def test_an_old_torch_excuses_nothing_else(check: str, said: str) -> None:
    assert beyond(check, (2, 0), said) == ""


def test_the_cause_counts() -> None:
    def fails() -> None:
        try:
            raise RuntimeError("Cannot call sizes() on tensor with symbolic sizes/strides")
        except RuntimeError as error:
            raise ValueError("from user code:") from error

    with pytest.raises(ValueError, match="from user code") as caught:
        fails()
    assert "symbolic sizes" in traced(caught.value)
    with pytest.raises(BeyondTorchError, match=r"^torch 2\.0 takes no symbolic sizes"):
        raise_if_beyond("compile", (2, 0), caught.value)
    raise_if_beyond("compile", (2, 2), caught.value)


@pytest.mark.parametrize(
    ("version", "release"), [("2.2.2+cu121", (2, 2)), ("2.11.0", (2, 11)), ("2.16.0.dev20261101", (2, 16))]
)
def test_a_release_is_read_from_any_version(version: str, release: tuple[int, int]) -> None:
    assert release_of(version) == release
