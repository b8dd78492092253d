"""What only a GPU can show of rasterize. Skipped, with the reason, where there is none."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import diffrast as dr

pytestmark = pytest.mark.gpu
OP = torch.ops.diffrast.rasterize
BACKWARD = torch.ops.diffrast.rasterize_backward


def soup(triangles: int, *, images: int = 2, size: float = 1.0, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Triangles of their own vertices, some of them behind the eye."""
    random = torch.Generator().manual_seed(seed)
    pos = torch.randn(images, triangles, 3, 4, generator=random)
    pos[..., 3] = 0.9 + torch.rand(images, triangles, 3, generator=random)
    pos[:, ::7, 1, 3] *= -1
    pos = pos[..., :1, :] + size * (pos - pos[..., :1, :])
    return pos.reshape(images, -1, 4), torch.arange(3 * triangles, dtype=torch.int32).view(-1, 3)


def on_cuda(*arguments: object) -> list:
    return [item.cuda() if isinstance(item, Tensor) else item for item in arguments]


@pytest.mark.parametrize("triangles, size", [(1, 1.0), (50, 1.0), (5000, 0.05), (5000, 0.5)])
@pytest.mark.parametrize("resolution", [(1, 1), (64, 64), (301, 2500)], ids=str)
def test_cuda_is_cpu(triangles: int, size: float, resolution: tuple[int, int]):
    """The same pixels, to the last bit."""
    pos, tri = soup(triangles, size=size)
    arguments = (pos, tri, *resolution, None, None, True)
    for have, want in zip(OP(*on_cuda(*arguments)), OP(*arguments), strict=True):
        assert torch.equal(have.cpu(), want)


@pytest.mark.parametrize("db", [False, True], ids=["", "db"])
def test_backward(db: bool):
    pos, tri = soup(500, size=0.3)
    rast, _ = OP(pos, tri, 120, 130, None, None, True)
    of_rast, of_db = torch.randn_like(rast), torch.randn_like(rast) if db else None
    have = BACKWARD(*on_cuda(pos, tri, rast, of_rast, of_db)).cpu()
    exact = BACKWARD(*(item.double() if item is not None and item.is_floating_point() else item
                       for item in (pos, tri, rast, of_rast, of_db)))  # fmt: skip
    want = BACKWARD(pos, tri, rast, of_rast, of_db)
    # Another order of the sums may cost as much as the CPU's own order does.
    slack = 4 * (want.double() - exact).abs().amax() + 1e-5 * exact.abs().amax()
    assert ((have.double() - exact).abs() <= slack).all()


@pytest.mark.parametrize("where", ["cpu", "cuda"])
def test_ranges(where: str):
    pos, tri = soup(40, images=1)
    ranges = torch.tensor([[0, 40], [7, 20], [3, 0]], dtype=torch.int32)
    want = OP(pos[0], tri, 50, 60, ranges, None, True)
    have = OP(pos[0].cuda(), tri.cuda(), 50, 60, ranges.to(where), None, True)
    assert all(torch.equal(a.cpu(), b) for a, b in zip(have, want, strict=True))


def test_layers():
    pos, tri = soup(40)
    front = None
    for _ in range(4):
        want = OP(pos, tri, 50, 60, None, front, True)[0]
        assert torch.equal(OP(*on_cuda(pos, tri, 50, 60, None, front, True))[0].cpu(), want)
        front = want


@pytest.mark.parametrize("shape", [(0, 5, 4), (2, 0, 4), (2, 5, 4)], ids=str)
@pytest.mark.parametrize("triangles", [0, 2])
def test_empty(shape: tuple[int, ...], triangles: int):
    pos = torch.rand(shape, device="cuda", requires_grad=True)
    tri = torch.full((triangles, 3), 7, dtype=torch.int32, device="cuda")
    rast, rast_db = dr.rasterize(dr.RasterizeCudaContext(), pos, tri, (3, 4))
    assert (rast == 0).all() and (rast_db == 0).all()
    assert (torch.autograd.grad(rast.sum() + rast_db.sum(), pos)[0] == 0).all()


def test_a_million_triangles():
    pos, tri = soup(1_000_000, images=1, size=0.002)
    arguments = (pos, tri, 2048, 2048, None, None, True)
    first, second = OP(*on_cuda(*arguments)), OP(*on_cuda(*arguments))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert all(torch.equal(a.cpu(), b) for a, b in zip(first, OP(*arguments), strict=True))


def test_graph():
    """Nothing waits for the host, so a graph can hold the call; replayed, it sees new positions."""
    pos, tri = on_cuda(*soup(300))
    ranges = torch.tensor([[0, 300], [10, 90]], dtype=torch.int32, device="cuda")
    static, static_range = pos.clone(), pos[0].clone()
    OP(static, tri, 64, 64, None, None, True)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        rast, rast_db = OP(static, tri, 64, 64, None, None, True)
        grad = BACKWARD(static, tri, rast, torch.ones_like(rast), rast_db)
        parts, _ = OP(static_range, tri, 64, 64, ranges, None, True)
    static.copy_(pos * 0.7 + 0.1)
    static_range.copy_(static[0])
    graph.replay()
    want = OP(static, tri, 64, 64, None, None, True)
    assert torch.equal(rast, want[0]) and torch.equal(rast_db, want[1])
    assert torch.equal(parts, OP(static_range, tri, 64, 64, ranges, None, True)[0])
    expected = BACKWARD(static, tri, *want[:1], torch.ones_like(rast), want[1])
    torch.testing.assert_close(grad, expected, rtol=1e-3, atol=1e-4 * expected.abs().max().item())


def test_runs_on_the_current_stream():
    """The input is filled on a side stream behind a long wait: a launch elsewhere would read the old one."""
    pos, tri = on_cuda(*soup(300))
    want = OP(pos, tri, 64, 64, None, None, True)[0]
    late = torch.zeros_like(pos)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        late.copy_(pos)
        have = OP(late, tri, 64, 64, None, None, True)[0]
    stream.synchronize()
    assert torch.equal(have, want)


@pytest.mark.parametrize("on_cpu", [0, 1, 5])
def test_mixed_devices_are_refused(on_cpu: int):
    pos, tri = soup(3)
    arguments = on_cuda(pos, tri, 8, 8, None, torch.zeros(2, 8, 8, 4), True)
    arguments[on_cpu] = arguments[on_cpu].cpu()
    with pytest.raises(RuntimeError, match="must be on the same device|same device"):
        OP(*arguments)


def test_float64_is_for_the_cpu():
    pos, tri = on_cuda(*soup(3))
    with pytest.raises(RuntimeError, match="pos must be float32"):
        OP(pos.double(), tri, 8, 8, None, None, True)


def test_deterministic_algorithms_refuse_the_backward():
    pos, tri = on_cuda(*soup(3))
    rast, _ = dr.rasterize(dr.RasterizeCudaContext(), pos.requires_grad_(), tri, (8, 8))
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(RuntimeError, match="deterministic"):
            rast.sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)
