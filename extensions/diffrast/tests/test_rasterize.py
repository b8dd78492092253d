"""rasterize against the reference, its conventions, its gradients and its errors."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import diffrast as dr
from references import rasterize as plain

CONTEXT = dr.RasterizeCudaContext()
OP = torch.ops.diffrast.rasterize
BACKWARD = torch.ops.diffrast.rasterize_backward


def indices(rows: list[list[int]]) -> Tensor:
    return torch.tensor(rows, dtype=torch.int32).reshape(-1, 3)


def soup(triangles: int, *, images: int = 1, seed: int = 0, reach: float = 1.2) -> tuple[Tensor, Tensor]:
    """Triangles of their own vertices in f64, in perspective, at different depths, some partly out of view."""
    random = torch.Generator().manual_seed(seed)
    w = 0.5 + 2 * torch.rand(images, 3 * triangles, 1, dtype=torch.float64, generator=random)
    ndc = (torch.rand(images, 3 * triangles, 3, dtype=torch.float64, generator=random) * 2 - 1) * reach
    return torch.cat([ndc * w, w], -1), torch.arange(3 * triangles, dtype=torch.int32).view(-1, 3)


def through_the_eye(triangles: int, seed: int) -> tuple[Tensor, Tensor]:
    """As soup, with vertices on both sides of the eye."""
    random = torch.Generator().manual_seed(seed)
    pos = torch.randn(1, 3 * triangles, 4, dtype=torch.float64, generator=random)
    pos[..., 3] += 0.3
    return pos, torch.arange(3 * triangles, dtype=torch.int32).view(-1, 3)


def clear_pixels(pos: Tensor, tri: Tensor, height: int, width: int) -> Tensor:
    """Where the reference sees the same triangle from a hundredth of a pixel to every side."""
    ids = plain.visible(pos, tri, height, width)
    clear = torch.ones_like(ids, dtype=torch.bool)
    for x, y in ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, 1), (1, -1), (-1, -1)):
        moved = pos.clone()
        moved[..., 0] += 0.02 * x / width * pos[..., 3]
        moved[..., 1] += 0.02 * y / height * pos[..., 3]
        clear &= plain.visible(moved, tri, height, width) == ids
    return clear


def agree(pos: Tensor, tri: Tensor, height: int, width: int, *, dtype: torch.dtype, least_clear: float) -> None:
    clear = clear_pixels(pos, tri, height, width)
    assert clear.double().mean() > least_clear
    rast, rast_db = dr.rasterize(CONTEXT, pos.to(dtype), tri, (height, width))
    want, want_db = plain.rasterize(pos, tri, height, width)
    rtol, atol = (1e-9, 1e-9) if dtype is torch.float64 else (2e-3, 2e-4)
    torch.testing.assert_close(rast[clear].double(), want[clear], rtol=rtol, atol=atol)
    torch.testing.assert_close(rast_db[clear].double(), want_db[clear], rtol=rtol, atol=10 * atol)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("size", [(8, 8), (1, 1), (37, 50), (64, 17)], ids=str)
def test_reference(dtype: torch.dtype, size: tuple[int, int]):
    pos, tri = soup(12, images=2, seed=size[1])
    agree(pos, tri, *size, dtype=dtype, least_clear=0.8 if size[0] > 1 else 0.4)


@pytest.mark.parametrize("seed", range(6))
def test_reference_behind_the_eye(seed: int):
    pos, tri = through_the_eye(8, seed)
    agree(pos, tri, 33, 41, dtype=torch.float64, least_clear=0.8)
    assert (dr.rasterize(CONTEXT, pos, tri, (33, 41))[0][..., 3] > 0).any()


def test_small_triangles():
    """Smaller than a tile, and than a pixel: those that are drawn without tiles."""
    pos, tri = soup(300, seed=5, reach=0.9)
    pos = pos.view(1, -1, 3, 4)
    pos = pos[..., :1, :] + 0.06 * (pos - pos[..., :1, :])
    agree(pos.reshape(1, -1, 4), tri, 40, 40, dtype=torch.float64, least_clear=0.8)


def test_conventions():
    """Row 0 is at the bottom; vertex 0 is (1, 0), vertex 1 (0, 1), vertex 2 (0, 0); ids count from 1."""
    pos = torch.tensor([[[-1.0, -1, 0.5, 1], [1, -1, 0.5, 1], [-1, 1, 0.5, 1]]])
    rast, rast_db = dr.rasterize(CONTEXT, pos, indices([[0, 1, 2]]), (4, 8))
    assert rast.shape == rast_db.shape == (1, 4, 8, 4)
    assert rast[0, 0, 0].tolist() == [1 - 1 / 16 - 1 / 8, 1 / 16, 0.5, 1]
    assert rast_db[0, 0, 0].tolist() == [-1 / 8, -1 / 4, 1 / 8, 0]
    assert (rast[0, :, :, 3] > 0).sum(1).tolist() == [7, 5, 3, 1]
    assert rast[0, 3, 7].tolist() == [0, 0, 0, 0]
    assert rast_db[0, 3, 7].tolist() == [0, 0, 0, 0]


def test_perspective():
    """Halfway on the screen is not halfway on the triangle."""
    pos = torch.tensor([[[-1.0, -1, 0, 1], [3, -3, 0, 3], [-1, 1, 0, 1]]])
    rast, _ = dr.rasterize(CONTEXT, pos, indices([[0, 1, 2]]), (128, 128))
    assert rast[0, 0, 63, 1].item() == pytest.approx(0.25, abs=0.01)


def test_nearest_is_seen_and_faces_have_no_back():
    quad = [[-1.0, -1, 0, 1], [3, -1, 0, 1], [-1, 3, 0, 1]]
    nearer = [[x, y, -0.5, w] for x, y, _, w in quad]
    pos = torch.tensor([quad + nearer])
    for order in ([[0, 1, 2], [3, 4, 5]], [[0, 2, 1], [3, 5, 4]]):
        assert (dr.rasterize(CONTEXT, pos, indices(order), (5, 5))[0][..., 3] == 2).all()
        assert (dr.rasterize(CONTEXT, pos, indices(order[::-1]), (5, 5))[0][..., 3] == 1).all()


def test_first_of_equal_depths():
    pos = torch.tensor([[[-1.0, -1, 0.25, 1], [3, -1, 0.25, 1], [-1, 3, 0.25, 1]]])
    assert (dr.rasterize(CONTEXT, pos, indices([[0, 1, 2], [2, 1, 0], [0, 1, 2]]), (33, 33))[0][..., 3] == 1).all()


def test_near_and_far_planes_cut():
    """z/w runs from -2 to 2 across the image."""
    pos = torch.tensor([[[-1.0, -1, -2, 1], [1, -1, 2, 1], [-1, 1, -2, 1], [1, 1, 2, 1]]])
    rast, _ = dr.rasterize(CONTEXT, pos, indices([[0, 1, 2], [2, 1, 3]]), (16, 16))
    assert (rast[0, :, :, 3] > 0).tolist() == [[4 <= x < 12 for x in range(16)]] * 16
    torch.testing.assert_close(rast[0, 3, 4:12, 2], torch.arange(-7, 9, 2) / 8)


def test_zero_area():
    pos = torch.tensor([[[-0.5, -0.5, 0, 1], [0.5, 0.5, 0, 1], [0, 0, 0, 1.0], [0, 0, 0, 0], [0.9, 0, 0, 1]]])
    tri = indices([[0, 1, 2], [0, 0, 1], [1, 1, 1], [0, 1, 3], [3, 3, 3], [3, 0, 4]])
    rast, rast_db = dr.rasterize(CONTEXT, pos, tri, (16, 16))
    assert (rast == 0).all() and (rast_db == 0).all()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("channel", range(4))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_not_finite(bad: float, channel: int, dtype: torch.dtype):
    pos, tri = soup(2, seed=3)
    want, want_db = dr.rasterize(CONTEXT, pos.to(dtype), tri[:1], (32, 32))
    pos[0, 4, channel] = bad
    rast, rast_db = dr.rasterize(CONTEXT, pos.to(dtype), tri, (32, 32))
    assert (want[..., 3] == 1).any()
    torch.testing.assert_close(rast, want, rtol=0, atol=0)
    torch.testing.assert_close(rast_db, want_db, rtol=0, atol=0)
    pos.requires_grad_()
    rast, rast_db = dr.rasterize(CONTEXT, pos, tri, (32, 32))
    (rast.sum() + rast_db.sum()).backward()
    assert pos.grad is not None and pos.grad.isfinite().all()


@pytest.mark.parametrize("scale", [1e-38, 1e-20, 1e10, 1e20, 3e38])
def test_absurd_numbers(scale: float):
    """Homogeneous coordinates mean the same at any scale; where f32 runs out, nothing worse than nothing comes."""
    pos, tri = soup(6, seed=4)
    pos = (pos / pos.abs().max() * scale).float().requires_grad_()
    rast, rast_db = dr.rasterize(CONTEXT, pos, tri, (32, 32))
    (rast.sum() + rast_db.sum()).backward()
    assert rast.isfinite().all() and rast_db.isfinite().all()
    ids = dr.rasterize(CONTEXT, (pos / scale).detach(), tri, (32, 32))[0][..., 3]
    if scale == 1e10:
        assert torch.equal(rast[..., 3], ids)


def test_indices_outside_of_pos():
    pos, tri = soup(2, seed=3)
    want = dr.rasterize(CONTEXT, pos, tri[:1], (32, 32))[0]
    for bad in (-1, 6, 2**31 - 1, -(2**31)):
        wrong = tri.clone()
        wrong[1, 1] = bad
        rast = dr.rasterize(CONTEXT, pos, wrong, (32, 32))[0]
        assert torch.equal(rast, want)
        # The raster's ids are an input like any other.
        alien = rast.clone()
        alien[..., 3] = torch.tensor([2.0, 3.0, -1.0, math.nan] * 8)
        assert (BACKWARD(pos, wrong, alien, torch.ones_like(rast), None) == 0).all()


@pytest.mark.parametrize("size", [(5000, 3), (3, 5000), (2049, 2050)], ids=str)
def test_large_resolution(size: tuple[int, int]):
    height, width = size
    pos = torch.tensor([[[-0.5, -0.5, 0, 1], [0.5, -0.5, 0, 1], [0.5, 0.5, 0, 1], [-0.5, 0.5, 0, 1.0]]])
    seen = dr.rasterize(CONTEXT, pos, indices([[0, 1, 2], [0, 2, 3]]), size)[0][0, :, :, 3] > 0
    rows = (torch.arange(height) * 2 + 1 - height).abs() * 2 <= height
    columns = (torch.arange(width) * 2 + 1 - width).abs() * 2 <= width
    inside = rows[:, None] & columns
    assert (seen != inside).sum() <= 2 * (height + width)  # centres exactly upon the rim
    assert not (seen & ~inside).any()


def test_ranges():
    """Each image draws its part of tri, named by its place in the whole."""
    pos, tri = soup(5, seed=7)
    ranges = torch.tensor([[0, 5], [3, 2], [1, 0], [0, 1], [5, 0]], dtype=torch.int32)
    rast, rast_db = dr.rasterize(CONTEXT, pos[0], tri, (20, 24), ranges=ranges)
    assert rast.shape == (5, 20, 24, 4)
    for image, (start, count) in enumerate(ranges.tolist()):
        want, want_db = dr.rasterize(CONTEXT, pos, tri[start : start + count], (20, 24))
        want[..., 3] += start * (want[..., 3] > 0)
        assert torch.equal(rast[image], want[0]) and torch.equal(rast_db[image], want_db[0])


def test_ranges_are_ignored_with_a_mesh_per_image():
    pos, tri = soup(2)
    ranges = torch.tensor([[0, 1]], dtype=torch.int32)
    assert torch.equal(dr.rasterize(CONTEXT, pos, tri, (8, 8), ranges)[0], dr.rasterize(CONTEXT, pos, tri, (8, 8))[0])


def test_depth_peeling():
    """Each pixel's layers are all its triangles, from near to far."""
    pos, tri = soup(6, seed=11)
    alone = torch.cat([dr.rasterize(CONTEXT, pos, tri[k : k + 1], (24, 24))[0] for k in range(6)])
    depth = torch.where(alone[..., 3] > 0, alone[..., 2], math.inf)
    order = depth.sort(0)
    with dr.DepthPeeler(CONTEXT, pos, tri, (24, 24)) as peeler:
        for layer in range(7):
            rast, rast_db = peeler.rasterize_next_layer()
            there = order.values[layer].isfinite() if layer < 6 else torch.zeros(24, 24, dtype=torch.bool)
            assert torch.equal(rast[0, :, :, 3] > 0, there)
            if layer < 6:
                assert torch.equal(rast[0, :, :, 3][there], order.indices[layer][there] + 1.0)
                assert torch.equal(rast[0, :, :, 2][there], order.values[layer][there])
        assert (rast_db == 0).all()
    with pytest.raises(RuntimeError, match="within `with`"):
        peeler.rasterize_next_layer()


def test_first_layer_is_rasterize():
    pos, tri = soup(6, seed=11)
    with dr.DepthPeeler(CONTEXT, pos.float(), tri, (24, 24)) as peeler:
        first = peeler.rasterize_next_layer()
        peeler.rasterize_next_layer()
    with peeler:
        again = peeler.rasterize_next_layer()
    for have, once_more, want in zip(first, again, dr.rasterize(CONTEXT, pos.float(), tri, (24, 24)), strict=True):
        assert torch.equal(have, want) and torch.equal(once_more, want)


def test_peeling_has_gradients():
    pos, tri = soup(4, seed=2)
    pos.requires_grad_()
    with dr.DepthPeeler(CONTEXT, pos, tri, (16, 16)) as peeler:
        first, _ = peeler.rasterize_next_layer()
        second, second_db = peeler.rasterize_next_layer()
    have = torch.autograd.grad(second[..., :2].sum() + second_db.square().sum(), pos)[0]
    want_rast, want_db = plain.rasterize(pos, tri, 16, 16, None, first)
    assert torch.equal(second[..., 3], want_rast[..., 3])
    want = torch.autograd.grad(want_rast[..., :2].sum() + want_db.square().sum(), pos)[0]
    torch.testing.assert_close(have, want, rtol=1e-8, atol=1e-9)


# Gradients


@pytest.mark.parametrize("grad_db", [True, False])
@pytest.mark.parametrize("scene", [soup(5, images=2, seed=21), through_the_eye(5, 2)], ids=["soup", "behind-the-eye"])
def test_gradcheck(scene: tuple[Tensor, Tensor], grad_db: bool):
    """Of u, v and the derivatives; z/w has no gradient by convention."""
    pos, tri = scene
    clear = clear_pixels(pos, tri, 6, 7)

    def function(pos: Tensor) -> tuple[Tensor, ...]:
        rast, rast_db = dr.rasterize(CONTEXT, pos, tri, (6, 7), grad_db=grad_db)
        return (rast[clear][:, :2], rast_db[clear]) if grad_db else (rast[clear][:, :2],)

    assert torch.autograd.gradcheck(function, pos.requires_grad_(), eps=1e-7, atol=1e-4)


def test_gradients_of_the_reference():
    pos, tri = soup(9, images=2, seed=23)
    pos.requires_grad_()
    rast, rast_db = dr.rasterize(CONTEXT, pos, tri, (24, 24))
    want, want_db = plain.shade(pos, tri, rast[..., 3].long())
    random = torch.Generator().manual_seed(0)
    of_rast, of_db = (torch.randn(rast.shape, dtype=pos.dtype, generator=random) for _ in range(2))
    for outputs, wanted, grads in (
        ((rast, rast_db), (want, want_db), (of_rast, of_db)),
        ((rast,), (want,), (of_rast,)),
        ((rast_db,), (want_db,), (of_db,)),
    ):
        have = torch.autograd.grad(outputs, pos, grads, retain_graph=True)[0]
        expected = torch.autograd.grad(wanted, pos, grads, retain_graph=True)[0]
        torch.testing.assert_close(have, expected, rtol=1e-8, atol=1e-8)


def test_derivatives_are_those_of_u_and_v():
    """rast_db against the differences of rast between the neighbours of a pixel."""
    pos, tri = soup(1, seed=31)
    rast, rast_db = dr.rasterize(CONTEXT, pos, tri, (256, 256))
    seen = rast[0, :, :, 3] > 0
    inner = seen[1:-1, 1:-1] & seen[1:-1, 2:] & seen[1:-1, :-2] & seen[2:, 1:-1] & seen[:-2, 1:-1]
    inner[:2] = inner[-2:] = inner[:, :2] = inner[:, -2:] = False
    assert inner.sum() > 100
    by_x = (rast[0, 1:-1, 2:, :2] - rast[0, 1:-1, :-2, :2]) / 2
    by_y = (rast[0, 2:, 1:-1, :2] - rast[0, :-2, 1:-1, :2]) / 2
    want = torch.stack([by_x[..., 0], by_y[..., 0], by_x[..., 1], by_y[..., 1]], -1)
    # A rim pixel may lie outside of the exact triangle by a trace, which u and v do not show: inner ones only.
    torch.testing.assert_close(rast_db[0, 1:-1, 1:-1][inner], want[inner], rtol=2e-2, atol=2e-5)


def test_depth_and_id_carry_no_gradient():
    pos, tri = soup(3)
    rast, _ = dr.rasterize(CONTEXT, pos.requires_grad_(), tri, (8, 8))
    assert (torch.autograd.grad(rast[..., 2:].sum(), pos)[0] == 0).all()


def test_grad_db_off_detaches():
    pos, tri = soup(3)
    rast, rast_db = dr.rasterize(CONTEXT, pos.requires_grad_(), tri, (8, 8), grad_db=False)
    assert rast.requires_grad and not rast_db.requires_grad and (rast_db != 0).any()


def test_twice_is_refused():
    pos, tri = soup(3)
    rast, _ = dr.rasterize(CONTEXT, pos.requires_grad_(), tri, (8, 8))
    grad = torch.autograd.grad(rast.square().sum(), pos, create_graph=True)[0]
    with pytest.raises(RuntimeError, match="once, not twice"):
        grad.sum().backward()


# Faces and shapes


def test_contexts_are_harmless():
    pos, tri = soup(3)
    want = dr.rasterize(None, pos, tri, (8, 8))
    gl = dr.RasterizeGLContext(output_db=False, mode="manual", device="cuda:0")
    gl.set_context()
    rast, rast_db = dr.rasterize(gl, pos, tri, (8, 8))
    gl.release_context()
    assert torch.equal(rast, want[0]) and rast_db.shape == (1, 8, 8, 0)
    for context in (dr.RasterizeCudaContext(device="cuda:0"), dr.RasterizeGLContext()):
        assert torch.equal(dr.rasterize(context, pos, tri, [8, 8])[1], want[1])


def test_not_contiguous():
    pos, tri = soup(4, images=2)
    crooked = pos.transpose(0, 2).contiguous().transpose(0, 2)
    shifted = torch.cat([tri, tri], 1)[:, 3:]
    assert not crooked.is_contiguous() and not shifted.is_contiguous()
    for have, want in zip(
        dr.rasterize(CONTEXT, crooked, shifted, (9, 8)), dr.rasterize(CONTEXT, pos, tri, (9, 8)), strict=True
    ):
        assert torch.equal(have, want) and have.is_contiguous()
    rast = dr.rasterize(CONTEXT, pos, tri, (9, 8))[0]
    grad = torch.randn_like(rast)
    expanded = torch.ones((), dtype=pos.dtype).expand(rast.shape)
    want = BACKWARD(pos, tri, rast, grad, expanded.contiguous())
    bent = rast.transpose(1, 2).contiguous().transpose(1, 2)
    assert torch.equal(BACKWARD(crooked, shifted, bent, grad.mT.contiguous().mT, expanded), want)


@pytest.mark.parametrize("shape", [(0, 5, 4), (2, 0, 4), (2, 5, 4)], ids=str)
@pytest.mark.parametrize("triangles", [0, 2])
def test_empty(shape: tuple[int, ...], triangles: int):
    pos = torch.rand(shape, requires_grad=True)
    tri = torch.full((triangles, 3), 7, dtype=torch.int32)
    rast, rast_db = dr.rasterize(CONTEXT, pos, tri, (3, 4))
    assert rast.shape == rast_db.shape == (shape[0], 3, 4, 4)
    assert (rast == 0).all() and (rast_db == 0).all()
    assert (torch.autograd.grad(rast.sum() + rast_db.sum(), pos)[0] == 0).all()


def test_no_ranges():
    ranges = torch.zeros(0, 2, dtype=torch.int32)
    assert dr.rasterize(CONTEXT, torch.rand(3, 4), indices([[0, 1, 2]]), (3, 4), ranges)[0].shape == (0, 3, 4, 4)


def test_same_every_time():
    pos, tri = soup(400, images=2, seed=9)
    pos = pos.float().requires_grad_()

    def run() -> list[Tensor]:
        rast, rast_db = dr.rasterize(CONTEXT, pos, tri, (100, 100))
        return [rast, rast_db, *torch.autograd.grad(rast.sum() + rast_db.sum(), pos)]

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    want = run()
    torch.set_num_threads(4)
    try:
        for _ in range(5):
            assert all(torch.equal(have, first) for have, first in zip(run(), want, strict=True))
    finally:
        torch.set_num_threads(threads)


def test_inputs_stay_as_they_are():
    pos, tri = soup(4)
    peel = dr.rasterize(CONTEXT, pos, tri, (8, 8))[0]
    inputs = [pos, tri, peel]
    before = [tensor.clone() for tensor in inputs]
    OP(pos, tri, 8, 8, None, peel, True)
    BACKWARD(pos, tri, peel, torch.ones_like(peel), None)
    assert all(torch.equal(now, then) for now, then in zip(inputs, before, strict=True))


# Errors

POS, TRI = soup(2)
RAST = torch.zeros(1, 4, 5, 4, dtype=torch.float64)
RANGES = torch.tensor([[0, 2]], dtype=torch.int32)
FORWARD_ERRORS = [
    ((POS[..., :3], TRI, 4, 5, None, None, True), "pos must have shape"),
    ((POS[0, 0], TRI, 4, 5, None, None, True), "pos must have shape"),
    ((POS.half(), TRI, 4, 5, None, None, True), "pos must be float32"),
    ((POS.long(), TRI, 4, 5, None, None, True), "pos must be float32"),
    ((POS, TRI[:, :2], 4, 5, None, None, True), r"tri must have shape \(T, 3\), got \(2, 2\)"),
    ((POS, TRI.long(), 4, 5, None, None, True), "tri must be int32"),
    ((POS, TRI, 0, 5, None, None, True), "height and width must be from 1 to 65536, got 0 x 5"),
    ((POS, TRI, 4, 65537, None, None, True), "height and width must be from 1 to 65536, got 4 x 65537"),
    ((POS, TRI, 4, 5, RANGES, None, True), r"ranges are for pos of shape \(V, 4\)"),
    ((POS[0], TRI, 4, 5, None, None, True), r"pos of shape \(V, 4\) needs ranges"),
    ((POS[0], TRI, 4, 5, RANGES[0], None, True), r"ranges must have shape \(N, 2\)"),
    ((POS[0], TRI, 4, 5, RANGES.long(), None, True), "ranges must be int32"),
    ((POS, TRI, 4, 5, None, RAST[:, :3], True), "peel must have shape"),
    ((POS, TRI, 4, 5, None, RAST.float(), True), "peel must have the dtype of pos"),
]
BACKWARD_ERRORS = [
    ((POS, TRI, RAST[0], RAST, None), "rast must have shape"),
    ((POS, TRI, RAST.repeat(2, 1, 1, 1), RAST, None), "rast must have shape"),
    ((POS, TRI, RAST, RAST[..., :3], None), "grad_rast must have shape"),
    ((POS, TRI, RAST, RAST.float(), None), "grad_rast must have the dtype of pos"),
    ((POS, TRI, RAST, RAST, RAST[:, 1:]), "grad_rast_db must have shape"),
]


def errors_of(cases: list) -> list:
    return [pytest.param(*case, id=f"{index}-{case[1].split()[0]}") for index, case in enumerate(cases)]


@pytest.mark.parametrize("meta", [False, True], ids=["cpu", "fake"])
@pytest.mark.parametrize(("arguments", "message"), errors_of(FORWARD_ERRORS))
def test_errors(arguments: tuple, message: str, meta: bool):
    with pytest.raises(RuntimeError, match=message):
        OP(*to_meta(arguments) if meta else arguments)


@pytest.mark.parametrize("meta", [False, True], ids=["cpu", "fake"])
@pytest.mark.parametrize(("arguments", "message"), errors_of(BACKWARD_ERRORS))
def test_backward_errors(arguments: tuple, message: str, meta: bool):
    with pytest.raises(RuntimeError, match=message):
        BACKWARD(*to_meta(arguments) if meta else arguments)


def to_meta(arguments: tuple) -> tuple:
    return tuple(argument.to("meta") if isinstance(argument, Tensor) else argument for argument in arguments)


@pytest.mark.parametrize("span", [[-1, 1], [0, 3], [2, 1], [0, -1], [2**31 - 1, 2**31 - 1]], ids=str)
def test_ranges_outside_of_tri(span: list[int]):
    with pytest.raises(RuntimeError, match=r"ranges\[1\] = \(-?\d+, -?\d+\) does not lie within the 2 triangles"):
        dr.rasterize(CONTEXT, POS[0], TRI, (4, 4), torch.tensor([[0, 2], span], dtype=torch.int32))


def test_too_many_triangles_in_all():
    """Refused before anything is allocated for them."""
    pos = torch.zeros(1, 1, 4).expand(2**20, 1, 4)
    with pytest.raises(RuntimeError, match="rasterize them in parts"):
        dr.rasterize(CONTEXT, pos, torch.zeros(2**11, 3, dtype=torch.int32), (1, 1))


def test_the_gates_scenes_keep_clear_of_edges():
    gate = pytest.importorskip("builder.gate", reason="the gate is the farm's, not the wheel's")
    cases = pytest.importorskip("references.cases_rasterize")
    for make in (cases.mesh, cases.floor):
        pos, tri = make(gate.Make("cpu", torch.float64))
        assert clear_pixels(pos, tri, cases.HEIGHT, cases.WIDTH).all()
