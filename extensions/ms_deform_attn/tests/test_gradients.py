"""Gradients by finite differences, over upstream's channel counts."""

from __future__ import annotations

import pytest
import torch
from cases import TORCH, floating, make_case

from ms_deform_attn import MSDeformAttnFunction, ms_deform_attn


@pytest.mark.parametrize("channels", [4, 30, 32, 64, 71, 1025])
def test_gradcheck(channels: int):
    case = make_case(channels=channels, requires_grad=True, spread=1.4)
    # fast_mode projects the Jacobian on random vectors: the full one takes minutes at 1025.
    assert torch.autograd.gradcheck(ms_deform_attn, tuple(case), fast_mode=channels > 4)


@pytest.mark.parametrize("which", [0, 1, 2], ids=["value", "sampling_loc", "attn_weight"])
def test_each_input_alone(which: int):
    case = make_case(channels=3)
    floating(case)[which].requires_grad_()
    assert torch.autograd.gradcheck(MSDeformAttnFunction.apply, (*case, 64))
    out = ms_deform_attn(*case)
    out.sum().backward()
    assert [tensor.grad is not None for tensor in floating(case)] == [index == which for index in range(3)]


def test_mixed_dtypes_get_gradients_of_their_own():
    case = make_case(dtype=torch.float16, loc_dtype=torch.float32, requires_grad=True)
    case = case._replace(attn_weight=case.attn_weight.detach().to(torch.bfloat16).requires_grad_())
    ms_deform_attn(*case).sum().backward()
    assert [tensor.grad.dtype for tensor in floating(case)] == [torch.float16, torch.float32, torch.bfloat16]


def test_no_second_derivative():
    case = make_case(requires_grad=True)
    out = ms_deform_attn(*case)
    (grad,) = torch.autograd.grad(out.pow(2).sum(), case.value, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiated once|once_differentiable"):
        grad.sum().backward()


def test_no_graph_without_need():
    out = ms_deform_attn(*make_case())
    assert not out.requires_grad
    with torch.no_grad():
        assert not ms_deform_attn(*make_case(requires_grad=True)).requires_grad
    if TORCH >= (2, 1):
        with torch.inference_mode():
            assert ms_deform_attn(*make_case()).is_inference()


def test_under_autocast():
    """Autocast hands over a 16-bit value beside f32 locations and weights."""
    case = make_case(dtype=torch.float32, channels=8, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = case.value @ torch.eye(8)
        assert value.dtype == torch.bfloat16
        out = ms_deform_attn(value, *case[1:])
    assert out.dtype == torch.bfloat16
    out.float().sum().backward()
    assert [tensor.grad.dtype for tensor in floating(case)] == [torch.float32] * 3
