"""What a draft reads in the errors of an op."""

from __future__ import annotations

import pytest

from builder.gate.draft.hints import only_cuda


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ("RuntimeError: xs must be located in the CUDA", True),
        ("RuntimeError: x must be placed on the GPU", True),
        ("RuntimeError: x must be a CUDA tensor", True),
        ("RuntimeError: xs must be a Float tensor", False),
        ("RuntimeError: x must be on the CPU", False),
    ],
)
def test_a_message_that_asks_for_cuda(message: str, *, says: bool) -> None:
    assert only_cuda(message) is says
