"""Mip stacks and the choice of the level."""

from __future__ import annotations

import math

import pytest
import torch
from references import texture as plain
from torch import Tensor

from diffrast import texture, texture_construct_mip


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).requires_grad_()


def biased(level: float, *, pixels: int = 1) -> Tensor:
    return torch.full((1, 1, pixels), level, dtype=torch.float64)


SHAPES = [(1, 8, 8, 3), (2, 4, 16, 1), (1, 1, 8, 2), (3, 8, 1, 2), (1, 1, 1, 4), (2, 6, 8, 8, 2), (1, 6, 1, 1, 2)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_levels_are_box_means(shape: tuple[int, ...]) -> None:
    tex = draw(*shape)
    stack = texture_construct_mip(tex, cube_mode=len(shape) == 5)
    want = plain.build_mips(tex)
    assert stack.levels == len(want) == int(math.log2(max(shape[-3:-1])))
    packed = plain.pack_mips(want) if want else tex.new_empty(shape[0], 0, shape[-1])
    torch.testing.assert_close(stack.packed, packed)
    assert stack.packed.is_contiguous()
    if want:
        weight = draw(*packed.shape, seed=1).detach()
        have, other = (torch.autograd.grad(out, tex, weight)[0] for out in (stack.packed, packed))
        torch.testing.assert_close(have, other)
        assert torch.autograd.gradcheck(lambda t: texture_construct_mip(t, None, t.dim() == 5).packed, tex)


@pytest.mark.parametrize(
    "shape, level", [((3, 4), 0), ((4, 3), 0), ((1, 5), 0), ((6, 4), 1), ((12, 12), 2), ((8, 20), 2)]
)
def test_odd_sides_are_refused_unless_the_stack_ends_before(shape: tuple[int, int], level: int) -> None:
    tex = draw(1, *shape, 2)
    with pytest.raises(ValueError, match=rf"has no mip level {level + 1}[\s\S]*max_mip_level={level}"):
        texture_construct_mip(tex)
    with pytest.raises(ValueError, match="is odd"):
        texture(tex, draw(1, 2, 2, 2), mip_level_bias=torch.ones(1, 2, 2).double())
    with pytest.raises(ValueError, match="is odd"):
        texture_construct_mip(tex, max_mip_level=level + 1)
    assert texture_construct_mip(tex, max_mip_level=level).levels == level
    inputs = tex, draw(1, 3, 3, 2, seed=1), None, draw(1, 3, 3, seed=2)
    have = texture(*inputs, max_mip_level=level)
    want = plain.texture(*inputs, filter_mode="linear-mipmap-linear", max_mip_level=level)
    torch.testing.assert_close(have, want)


def test_max_mip_level_beyond_the_last_is_no_error() -> None:
    assert texture_construct_mip(draw(1, 4, 4, 1), max_mip_level=9).levels == 2
    with pytest.raises(ValueError, match="max_mip_level must be 0 or more"):
        texture_construct_mip(draw(1, 4, 4, 1), max_mip_level=-1)


def test_max_mip_level_is_the_last_used() -> None:
    tex, uv = draw(1, 8, 8, 2), draw(1, 1, 5, 2, seed=1)
    coarse = biased(9.0, pixels=5)
    for last, image in enumerate([tex, *plain.build_mips(tex)]):
        want = plain.sample(image, uv, "wrap")
        torch.testing.assert_close(texture(tex, uv, None, coarse, max_mip_level=last), want)
        torch.testing.assert_close(texture(tex, uv, None, coarse, texture_construct_mip(tex), max_mip_level=last), want)
        mips = plain.build_mips(tex)
        torch.testing.assert_close(texture(tex, uv, None, coarse, mips, max_mip_level=last), want)


@pytest.mark.parametrize("cube", [False, True], ids=["plane", "cube"])
@pytest.mark.parametrize("filter_mode", ["linear-mipmap-nearest", "linear-mipmap-linear"])
def test_a_stack_made_before_is_the_one_made_inside(cube: bool, filter_mode: str) -> None:
    tex = draw(2, 6, 8, 8, 3) if cube else draw(2, 8, 4, 3)
    uv, bias = draw(2, 5, 5, 3 if cube else 2, seed=1), draw(2, 5, 5, seed=2)
    modes = {"filter_mode": filter_mode, "boundary_mode": "cube" if cube else "wrap"}
    weight = draw(2, 5, 5, 3, seed=3).detach()
    stack = texture_construct_mip(tex, cube_mode=cube)
    inside = torch.autograd.grad(texture(tex, uv, None, bias, **modes), tex, weight)[0]
    # One stack, two calls, two gradients: nothing of it is used up.
    for _ in range(2):
        before = torch.autograd.grad(texture(tex, uv, None, bias, stack, **modes), tex, weight)[0]
        assert torch.equal(before, inside)


def test_own_levels_get_their_own_gradients() -> None:
    tex = draw(1, 8, 4, 3)
    mips = [draw(1, 4, 2, 3, seed=1), draw(1, 2, 1, 3, seed=2), draw(1, 1, 1, 3, seed=3)]
    uv, bias = draw(1, 6, 6, 2, seed=4), (draw(1, 6, 6, seed=5) + 1).detach()
    weight = draw(1, 6, 6, 3, seed=6).detach()
    have = texture(tex, uv, None, bias, mips)
    want = plain.texture(tex, uv, None, bias, mips, "linear-mipmap-linear")
    torch.testing.assert_close(have, want)
    inputs = [tex, *mips, uv]
    for grad, other in zip(torch.autograd.grad(have, inputs, weight), torch.autograd.grad(want, inputs, weight)):
        assert (other != 0).any()
        torch.testing.assert_close(grad, other)


def test_own_levels_of_a_cube() -> None:
    tex, mips = draw(1, 6, 4, 4, 2), [draw(1, 6, 2, 2, 2, seed=1), draw(1, 6, 1, 1, 2, seed=2)]
    uv, bias = draw(1, 6, 6, 3, seed=4), (draw(1, 6, 6, seed=5) + 1).detach()
    have = texture(tex, uv, None, bias, mips, boundary_mode="cube")
    torch.testing.assert_close(have, plain.texture(tex, uv, None, bias, mips, "linear-mipmap-linear", "cube"))


def test_an_empty_list_means_the_base_alone() -> None:
    tex, uv = draw(1, 3, 5, 2), draw(1, 1, 5, 2, seed=1)
    assert torch.equal(texture(tex, uv, None, biased(2.0, pixels=5), []), texture(tex, uv))


@pytest.mark.parametrize(
    "mips, message",
    [
        ([torch.rand(1, 4, 4, 3)], r"mip\[0\] must have shape \(1, 4, 2, 3\)"),
        ([torch.rand(1, 4, 2, 2)], r"mip\[0\] must have shape"),
        ([torch.rand(2, 4, 2, 3)], r"mip\[0\] must have shape"),
        ([torch.rand(1, 4, 2, 3), torch.rand(1, 4, 2, 3)], r"mip\[1\] must have shape \(1, 2, 1, 3\)"),
        ([torch.rand(1, 4, 2, 3).double()], r"mip\[0\] must have .* the dtype"),
    ],
)
def test_wrong_levels_are_named(mips: list[Tensor], message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        texture(torch.rand(1, 8, 4, 3), torch.rand(1, 2, 2, 2), None, torch.rand(1, 2, 2), mips)


@pytest.mark.parametrize("sides", [((6, 4), (3, 2), (1, 1)), ((2, 2), (1, 1), (1, 1))], ids=["odd", "too-many"])
def test_own_levels_halve_as_built_ones_do(sides: tuple[tuple[int, int], ...]) -> None:
    tex, *mips = (torch.rand(1, *side, 2) for side in sides)
    with pytest.raises(RuntimeError, match="cannot be halved 2 times"):
        texture(tex, torch.rand(1, 2, 2, 2), None, torch.rand(1, 2, 2), mips)


def test_the_stack_of_another_texture_is_refused() -> None:
    stack = texture_construct_mip(torch.rand(1, 8, 8, 3))
    with pytest.raises(RuntimeError, match="mip was made for a texture of other sides"):
        texture(torch.rand(1, 8, 4, 3), torch.rand(1, 2, 2, 2), None, torch.rand(1, 2, 2), stack)


def level_seen(uv_da: Tensor, bias: Tensor | None = None, height: int = 8, width: int = 8) -> Tensor:
    """The level that is taken: each level holds its own number."""
    count = int(math.log2(max(height, width)))
    mips = [
        torch.full((1, max(height >> level, 1), max(width >> level, 1), 1), float(level), dtype=torch.float64)
        for level in range(count + 1)
    ]
    uv = torch.full((1, 1, uv_da.shape[2], 2), 0.4, dtype=torch.float64)
    return texture(mips[0], uv, uv_da, bias, mips[1:])[0, 0, :, 0]


def rates(*rows: tuple[float, float, float, float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)[None, None]


def test_the_level_is_that_of_the_longer_axis() -> None:
    seen = level_seen(
        rates(
            (1 / 8, 0, 0, 1 / 8),  # a texel a pixel
            (2 / 8, 0, 0, 1 / 8),
            (1 / 8, 0, 0, 2 / 8),
            (0, 4 / 8, 1 / 8, 0),
            (2 / 8, 2 / 8, 2 / 8, 2 / 8),  # the diagonal: 4 texels
            (3 / 8, 0, 4 / 8, 0),  # 5 texels along one line
            (0, 0, 0, 0),
            (1e-3, 0, 0, 1e-3),
            (100, 0, 0, 0),
        )
    )
    want = [0, 1, 1, 2, 2, math.log2(5), 0, 0, 3]
    torch.testing.assert_close(seen, torch.tensor(want, dtype=torch.float64), rtol=0, atol=1e-12)


def test_sides_count_each_for_itself() -> None:
    seen = level_seen(rates((1 / 4, 0, 0, 1 / 4)), height=4, width=16)
    assert seen.item() == 2  # 4 texels along the row, 1 down


def test_the_bias_is_added() -> None:
    bias = torch.tensor([[[0.0, 0.5, -0.5, 7.0, -7.0]]], dtype=torch.float64)
    seen = level_seen(rates(*[(2 / 8, 0, 0, 1 / 8)] * 5), bias)
    assert seen.tolist() == [1, 1.5, 0.5, 3, 0]


@pytest.mark.parametrize("scale, want", [(1e-300, 0.0), (1e300, 3.0), (math.inf, 3.0), (math.nan, 0.0)])
def test_extreme_footprints(scale: float, want: float) -> None:
    uv_da = rates((scale, scale, -scale, scale), (scale, 0, 0, 0)).requires_grad_()
    seen = level_seen(uv_da)
    assert seen.tolist() == [want, want]
    assert (torch.autograd.grad(seen.sum(), uv_da)[0] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_squares_do_not_overflow(dtype: torch.dtype) -> None:
    """1e25 squared is no float; with a bias of -80 the level is in range."""
    tex, uv = torch.rand(1, 8, 8, 1, dtype=dtype), torch.rand(1, 1, 1, 2, dtype=dtype)
    uv_da = torch.tensor([[[[1e25, 0, 0, 1e24]]]], dtype=dtype, requires_grad=True)
    bias = torch.full((1, 1, 1), 1.5 - math.log2(8e25), dtype=dtype)
    have = texture(tex, uv, uv_da, bias)
    want = texture(tex, uv, None, torch.full((1, 1, 1), 1.5, dtype=dtype))
    torch.testing.assert_close(have, want, rtol=1e-3, atol=1e-4)
    assert torch.autograd.grad(have.sum(), uv_da)[0].isfinite().all()


def test_a_clamped_level_has_no_gradient() -> None:
    tex, uv = draw(1, 8, 8, 2), draw(1, 1, 3, 2, seed=1)
    bias = torch.tensor([[[-0.5, 1.5, 3.5]]], dtype=torch.float64, requires_grad=True)
    grad = torch.autograd.grad(texture(tex, uv, None, bias).sum(), bias)[0].flatten()
    assert grad[0] == 0
    assert grad[1] != 0
    assert grad[2] == 0


def test_nearest_level_rounds() -> None:
    tex, uv = draw(1, 8, 8, 2), draw(1, 1, 6, 2, seed=1)
    bias = torch.tensor([[[0.4, 0.6, 1.4, 1.6, 2.6, 9.0]]], dtype=torch.float64)
    images = [tex, *plain.build_mips(tex)]
    have = texture(tex, uv, None, bias, filter_mode="linear-mipmap-nearest")
    for pixel, level in enumerate([0, 1, 1, 2, 3, 3]):
        want = plain.sample(images[level], uv[:, :, pixel : pixel + 1], "wrap")
        torch.testing.assert_close(have[:, :, pixel : pixel + 1], want)


def test_a_stack_on_no_textures() -> None:
    stack = texture_construct_mip(torch.rand(0, 4, 4, 3))
    assert stack.packed.shape == (0, 5, 3)
    out = texture(torch.rand(0, 4, 4, 3), torch.rand(0, 2, 2, 2), None, torch.rand(0, 2, 2), stack)
    assert out.shape == (0, 2, 2, 3)


def test_deep_gradients_are_exact() -> None:
    """Each texel of the base has the same share of the last level."""
    tex = draw(1, 256, 64, 1)
    packed = texture_construct_mip(tex).packed
    grad = torch.autograd.grad(packed[0, -1, 0], tex)[0]
    assert torch.equal(grad, torch.full_like(grad, 1 / (256 * 64)))
