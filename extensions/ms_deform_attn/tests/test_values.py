"""Forward and backward against grid_sample in f64."""

from __future__ import annotations

import pytest
import torch
from cases import Case, errors, floating, in_double, make_case, reference

from ms_deform_attn import ms_deform_attn

HALVES = [torch.float16, torch.bfloat16]
CHANNELS = [1, 2, 4, 30, 32, 64, 71, 1025]
# Largest error of rounding once to the type, relative to the value.
ROUNDING = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}


def gradients(out: torch.Tensor, case: Case, grad: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.autograd.grad(out, floating(case), grad.to(out.dtype))


def test_double_agrees_as_closely_as_mmcv_asks():
    case = make_case()
    absolute, relative = errors(ms_deform_attn(*case), reference(case))
    assert absolute < 1e-18
    assert relative < 1e-15


def test_float_agrees_as_closely_as_mmcv_asks():
    case = make_case(dtype=torch.float32)
    absolute, relative = errors(ms_deform_attn(*case), reference(case))
    assert absolute < 1e-9
    assert relative < 1e-6


@pytest.mark.parametrize("channels", CHANNELS)
@pytest.mark.parametrize("spread", [1.0, 2.0], ids=["inside", "partly-outside"])
def test_double(channels: int, spread: float):
    case = make_case(
        batch=2, heads=3, queries=5, points=3, channels=channels, spread=spread, scale=1.0, requires_grad=True
    )
    out, want = ms_deform_attn(*case), reference(case)
    torch.testing.assert_close(out, want, rtol=1e-12, atol=1e-12)
    grad = torch.randn(out.shape, dtype=out.dtype, generator=torch.Generator().manual_seed(0))
    for have, expected in zip(gradients(out, case, grad), gradients(want, case, grad)):
        torch.testing.assert_close(have, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
def test_narrow_types_round_once(dtype: torch.dtype):
    """Sums are in f32, so the error is one rounding of the result and not one per point."""
    case = make_case(
        batch=2, heads=4, queries=50, channels=32, points=4, scale=1.0, dtype=dtype, loc_dtype=torch.float32,
        shapes=((16, 20), (8, 10), (4, 5)), requires_grad=True,
    )
    exact = in_double(case)
    out, want = ms_deform_attn(*case), reference(exact)
    assert out.dtype == dtype
    rtol = ROUNDING[dtype] + 2e-6
    torch.testing.assert_close(out.double(), want, rtol=rtol, atol=1e-6)

    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    have = gradients(out, case, grad)
    expected = torch.autograd.grad(want, floating(exact), grad.double())
    assert [tensor.dtype for tensor in have] == [dtype, torch.float32, torch.float32]
    torch.testing.assert_close(have[0].double(), expected[0], rtol=rtol, atol=1e-5)
    torch.testing.assert_close(have[1].double(), expected[1], rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(have[2].double(), expected[2], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", HALVES)
def test_all_narrow(dtype: torch.dtype):
    """Upstream's habit: everything in one dtype. mmcv's tolerance for half."""
    case = make_case(dtype=dtype, requires_grad=True)
    out = ms_deform_attn(*case)
    absolute, relative = errors(out.double(), reference(in_double(case)))
    assert absolute < (1e-5 if dtype is torch.float16 else 1e-4)
    assert relative < 1e-2
    assert [tensor.dtype for tensor in gradients(out, case, torch.ones_like(out))] == [dtype] * 3


def test_locations_keep_f32_beside_half_values():
    """On a wide map, a location rounded to half would be off by a visible part of a pixel."""
    shapes = ((100, 152),)
    case = make_case(shapes=shapes, queries=200, channels=8, scale=1.0, dtype=torch.float16, loc_dtype=torch.float32)
    want = reference(in_double(case))
    rounded = case._replace(sampling_loc=case.sampling_loc.half())
    kept = (ms_deform_attn(*case).double() - want).abs().max()
    lost = (ms_deform_attn(*rounded).double() - want).abs().max()
    assert kept < 5e-4
    assert lost > 10 * kept


@pytest.mark.parametrize("dtype", HALVES)
def test_grad_value_is_summed_in_f32(dtype: torch.dtype):
    """4096 ones on one pixel: a 16-bit sum would stop at 2048 (half) or 256 (bfloat16)."""
    case = make_case(shapes=((1, 1),), heads=1, channels=4, points=1, queries=4096, dtype=dtype)
    case = case._replace(
        value=case.value.requires_grad_(),
        sampling_loc=torch.full_like(case.sampling_loc, 0.5),
        attn_weight=torch.ones_like(case.attn_weight),
    )
    ms_deform_attn(*case).sum().backward()
    assert case.value.grad.float().unique().tolist() == [4096.0]


@pytest.mark.parametrize("dtype", HALVES)
def test_every_bit_pattern_passes_through(dtype: torch.dtype):
    """The CPU kernels bring their own 16-bit conversions: all 65536 patterns, there and back."""
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    value = bits.view(dtype).reshape(1, 1, 1, -1)
    shapes, starts = torch.tensor([[1, 1]]), torch.tensor([0])
    loc, weight = torch.full((1, 1, 1, 1, 1, 2), 0.5), torch.ones(1, 1, 1, 1, 1)
    out = ms_deform_attn(value, shapes, starts, loc, weight)
    torch.testing.assert_close(out.flatten(), value.flatten(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", HALVES)
def test_rounding_is_torchs(dtype: torch.dtype):
    """Results between two 16-bit numbers, ties included, go where torch's own cast sends them."""
    random = torch.Generator().manual_seed(0)
    exponents = torch.randint(-26, 17, (20000,), generator=random).float()
    weight = torch.randn(20000, generator=random) * torch.exp2(exponents)
    ties = (torch.arange(1, 2000).to(dtype).float() + torch.arange(2, 2001).to(dtype).float()) / 2
    weight = torch.cat([weight, ties, torch.tensor([65519.0, 65520.0, -65520.0, 3.4e38])]).reshape(1, -1, 1, 1, 1)
    value = torch.ones(1, 1, 1, 1, dtype=dtype)
    loc = torch.full((*weight.shape, 2), 0.5)
    out = ms_deform_attn(value, torch.tensor([[1, 1]]), torch.tensor([0]), loc, weight)
    torch.testing.assert_close(out.flatten(), weight.flatten().to(dtype), rtol=0, atol=0)


@pytest.mark.parametrize("step", [1, 64, 1000])
def test_any_batch_whatever_the_step(step: int):
    """Upstream refuses N=154 with the default step of 64."""
    case = make_case(batch=154, dtype=torch.float32)
    torch.testing.assert_close(ms_deform_attn(*case, step), reference(case), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    "empty",
    [{"batch": 0}, {"queries": 0}, {"heads": 0}, {"channels": 0}, {"points": 0}, {"shapes": ()}, {"shapes": ((0, 4),)}],
    ids=str,
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_empty(empty: dict, dtype: torch.dtype):
    case = make_case(**empty, dtype=dtype, requires_grad=True)
    out = ms_deform_attn(*case)
    batch, _, heads, channels = case.value.shape
    assert out.shape == (batch, case.sampling_loc.shape[1], heads * channels)
    assert (out == 0).all()
    for grad, tensor in zip(gradients(out, case, torch.ones_like(out)), floating(case)):
        assert grad.shape == tensor.shape
        assert (grad == 0).all()


def test_strides_do_not_matter():
    case = make_case(batch=2, heads=3, channels=8, queries=4, requires_grad=True)
    crooked = Case(*(tensor.detach().transpose(0, -1).contiguous().transpose(0, -1) for tensor in case))
    crooked = Case(*(t.requires_grad_() if t.is_floating_point() else t for t in crooked))
    assert not any(tensor.is_contiguous() for tensor in (*floating(crooked), crooked.spatial_shapes))
    out, again = ms_deform_attn(*case), ms_deform_attn(*crooked)
    assert again.is_contiguous()
    torch.testing.assert_close(again, out, rtol=0, atol=0)
    grad = torch.randn(out.shape[::-1], dtype=out.dtype).permute(2, 1, 0)  # not contiguous either
    for have, expected in zip(gradients(again, crooked, grad), gradients(out, case, grad)):
        torch.testing.assert_close(have, expected, rtol=0, atol=0)


def test_expanded_gradient():
    case = make_case(requires_grad=True)
    ms_deform_attn(*case).sum().backward()  # sum's gradient has strides of zero
    grads = [tensor.grad for tensor in floating(case)]
    expected = torch.autograd.grad(reference(case).sum(), floating(case))
    for have, want in zip(grads, expected):
        torch.testing.assert_close(have, want, rtol=1e-10, atol=1e-12)


def test_locations_far_away_and_not_finite():
    case = make_case(channels=4, queries=6, requires_grad=True)
    loc = case.sampling_loc.detach().clone()
    for query, bad in enumerate([float("nan"), float("inf"), -float("inf"), 1e30, -1e30]):
        loc[:, query] = bad
    case = case._replace(sampling_loc=loc.requires_grad_())
    out = ms_deform_attn(*case)
    assert (out[:, :5] == 0).all()
    assert (out[:, 5] != 0).all()
    grads = gradients(out, case, torch.ones_like(out))
    assert all(torch.isfinite(grad).all() for grad in grads)
    assert (grads[1][:, :5] == 0).all()


def test_locations_on_the_edges():
    """Pixel centres, the outermost half pixel, and exactly one pixel outside."""
    steps = torch.tensor([-0.5, -0.25, 0.0, 0.125, 0.5, 0.875, 1.0, 1.25, 1.5], dtype=torch.float64)
    y, x = torch.meshgrid(steps, steps, indexing="ij")
    loc = torch.stack([x.flatten(), y.flatten()], -1).reshape(1, -1, 1, 1, 1, 2)
    value = torch.rand(1, 16, 1, 3, dtype=torch.float64)
    weight = torch.ones(loc.shape[:-1], dtype=torch.float64)
    case = Case(value, torch.tensor([[4, 4]]), torch.tensor([0]), loc, weight)
    torch.testing.assert_close(ms_deform_attn(*case), reference(case), rtol=1e-12, atol=1e-14)


def test_infinite_pixel_spoils_only_its_neighbours():
    value = torch.ones(1, 16, 1, 1)
    value[0, 0] = float("inf")
    loc = torch.tensor([[0.0, 0.9]]).reshape(1, 1, 1, 1, 1, 2)
    out = ms_deform_attn(value, torch.tensor([[4, 4]]), torch.tensor([0]), loc, torch.ones(1, 1, 1, 1, 1))
    assert torch.isfinite(out).all()


def test_threads_do_not_change_the_result():
    case = make_case(batch=2, heads=4, channels=32, queries=300, dtype=torch.float32, requires_grad=True)

    def run() -> list[torch.Tensor]:
        out = ms_deform_attn(*case)
        return [out, *gradients(out, case, torch.ones_like(out))]

    threads = torch.get_num_threads()
    many = run()
    try:
        torch.set_num_threads(1)
        one = run()
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for a, b in zip(many, one))


def test_levels_may_leave_gaps_and_come_in_any_order():
    case = make_case(scale=1.0)
    value = torch.cat([torch.full_like(case.value[:, :5], 9.0), case.value[:, 24:], case.value[:, :24]], 1)
    moved = case._replace(value=value, level_start_index=torch.tensor([11, 5]))
    torch.testing.assert_close(ms_deform_attn(*moved), ms_deform_attn(*case), rtol=0, atol=0)
