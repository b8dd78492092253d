"""Cube maps: orientation, seams, directions, gradients."""

from __future__ import annotations

import itertools

import pytest
import torch
from references import texture as plain
from torch import Tensor

from diffrast import texture

FILTERS = ["nearest", "linear", "linear-mipmap-nearest", "linear-mipmap-linear"]
SIDES = [1, 2, 4, 8]


def draw(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator, dtype=torch.float64) * scale).requires_grad_()


def lookup(tex: Tensor, directions: Tensor, **modes: str) -> Tensor:
    """(K, 3) -> (K, C)."""
    return texture(tex, directions[None, None], boundary_mode="cube", **modes)[0, 0]


@pytest.mark.parametrize("filter_mode", FILTERS)
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("given", ["uv_da", "bias", "both"])
def test_values_and_gradients(filter_mode: str, side: int, given: str) -> None:
    inputs = [
        draw(2, 6, side, side, 3),
        draw(2, 9, 11, 3, seed=1),
        draw(2, 9, 11, 6, seed=2, scale=0.3) if given != "bias" else None,
        draw(2, 9, 11, seed=3, scale=0.5) if given != "uv_da" else None,
    ]
    asked = [tensor for tensor in inputs if tensor is not None]
    modes = {"filter_mode": filter_mode, "boundary_mode": "cube"}
    have, want = texture(*inputs, **modes), plain.texture(*inputs, **modes)
    torch.testing.assert_close(have, want, rtol=1e-9, atol=1e-11)
    weight = draw(2, 9, 11, 3, seed=4).detach()
    options = {"allow_unused": True, "materialize_grads": True}
    for grad, other in zip(
        torch.autograd.grad(have, asked, weight, **options), torch.autograd.grad(want, asked, weight, **options)
    ):
        torch.testing.assert_close(grad, other, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("filter_mode", ["linear", "linear-mipmap-linear"])
def test_gradcheck(filter_mode: str) -> None:
    # Slopes jump where texels meet: places a quarter of a texel off, also beside the edges and corners of the faces.
    steps = (torch.arange(8, dtype=torch.float64) + 0.25) / 8
    t, s = torch.meshgrid(steps, steps, indexing="ij")
    face = torch.arange(64).reshape(8, 8) % 6
    axes = plain.CUBE_FACES[face]
    uv = axes[..., 0, :] + axes[..., 1, :] * (2 * s[..., None] - 1) + axes[..., 2, :] * (2 * t[..., None] - 1)
    uv = (uv * (1 + torch.rand(8, 8, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(1))))[None]
    tex, uv_da = draw(1, 6, 8, 8, 2), draw(1, 8, 8, 6, seed=2).detach()
    level = plain.footprint_level(tex, uv, uv_da, "cube")
    uv_da = uv_da * (0.5 - level).exp2()[..., None]  # between level 0 and 1
    inputs = [tex, uv.requires_grad_(), uv_da.requires_grad_(), draw(1, 8, 8, seed=3, scale=0.05)]
    assert torch.autograd.gradcheck(
        lambda *given: texture(*given, filter_mode=filter_mode, boundary_mode="cube", max_mip_level=2),
        inputs if "mipmap" in filter_mode else inputs[:2],
        nondet_tol=0.0,
    )


def test_faces_are_those_of_opengl() -> None:
    tex = torch.arange(6.0).reshape(1, 6, 1, 1, 1).expand(1, 6, 4, 4, 1)
    towards = torch.tensor([[1.0, 0, 0], [-1, 0, 0], [0, 1, 0], [0, -1, 0], [0, 0, 1], [0, 0, -1]])
    for filter_mode in ("nearest", "linear"):
        assert lookup(tex, towards, filter_mode=filter_mode).flatten().tolist() == [0, 1, 2, 3, 4, 5]


def test_rows_and_columns_are_those_of_opengl() -> None:
    """A step along a row and one down the rows, as written in table 8.19."""
    along = [(0, 0, -1), (0, 0, 1), (1, 0, 0), (1, 0, 0), (1, 0, 0), (-1, 0, 0)]
    down = [(0, -1, 0), (0, -1, 0), (0, 0, 1), (0, 0, -1), (0, -1, 0), (0, -1, 0)]
    towards = [(1, 0, 0), (-1, 0, 0), (0, 1, 0), (0, -1, 0), (0, 0, 1), (0, 0, -1)]
    tex = torch.arange(6 * 16, dtype=torch.float64).reshape(1, 6, 4, 4, 1)
    for face in range(6):
        middle, right, below = (torch.tensor(axes[face], dtype=torch.float64) for axes in (towards, along, down))
        direction = middle + right * 0.75 + below * 0.25  # the last column, the third row
        assert lookup(tex, direction[None], filter_mode="nearest").item() == face * 16 + 2 * 4 + 3


def edges() -> Tensor:
    """(12, 2, 3): the ends of every edge of the cube."""
    corners = torch.tensor(list(itertools.product([-1.0, 1.0], repeat=3)), dtype=torch.float64)
    pairs = [(a, b) for a, b in itertools.combinations(range(8), 2) if (corners[a] != corners[b]).sum() == 1]
    assert len(pairs) == 12
    return torch.stack([torch.stack([corners[a], corners[b]]) for a, b in pairs])


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("filter_mode", ["linear", "linear-mipmap-linear"])
def test_no_seam_on_any_edge(side: int, filter_mode: str) -> None:
    """Values on both sides of an edge meet; along it up to both corners."""
    tex = draw(1, 6, side, side, 2).detach()
    bias = {} if filter_mode == "linear" else {"mip_level_bias": torch.full((1, 1, 101), 0.4, dtype=torch.float64)}
    for start, end in edges():
        along = torch.linspace(0, 1, 101, dtype=torch.float64)[:, None]
        points = start + (end - start) * along
        across = [axis for axis in range(3) if start[axis] == end[axis]]
        seen = []
        for axis in across:
            nudge = torch.zeros(3, dtype=torch.float64)
            nudge[axis] = start[axis] * 1e-9
            seen.append(texture(tex, (points + nudge)[None, None], boundary_mode="cube", **bias))
        faces = [plain.cube_face(points[50] + torch.eye(3)[axis] * start[axis] * 1e-9) for axis in across]
        assert faces[0] != faces[1]
        torch.testing.assert_close(seen[0], seen[1], rtol=0, atol=1e-6)


@pytest.mark.parametrize("side", SIDES)
def test_the_faces_agree_on_every_corner(side: int) -> None:
    tex = draw(1, 6, side, side, 2).detach()
    for signs in itertools.product([-1.0, 1.0], repeat=3):
        corner = torch.tensor(signs, dtype=torch.float64)
        around = torch.stack([corner + torch.eye(3)[axis] * corner * 1e-9 for axis in range(3)])
        seen = lookup(tex, around)
        assert plain.cube_face(around).unique().numel() == 3
        nearest = torch.stack([lookup(tex, point[None], filter_mode="nearest")[0] for point in around])
        torch.testing.assert_close(seen, nearest.mean(0).expand_as(seen), rtol=0, atol=1e-6)


def test_a_smooth_function_of_the_direction_comes_back() -> None:
    """No neighbour may be mixed up: that would be off by a texel, 0.015 or more.

    Half a texel from an edge the mean of two texels stands for a place inside the cube: an error of the first order.
    """
    side = 64
    centres = plain.texel_centres(side)
    unit = centres / centres.norm(dim=-1, keepdim=True)
    tex = torch.stack([unit[..., 0], unit[..., 1] * unit[..., 2], unit[..., 2]], -1)[None]
    directions = draw(20000, 3).detach()
    there = directions / directions.norm(dim=-1, keepdim=True)
    want = torch.stack([there[:, 0], there[:, 1] * there[:, 2], there[:, 2]], -1)
    error = (lookup(tex, directions) - want).abs().amax(-1)
    middle, largest = there.abs().sort(dim=-1).values[:, 1:].unbind(-1)
    edge = middle / largest > 1 - 1 / side
    assert edge.any()
    assert error[~edge].max() < 5e-4
    assert error[edge].max() < 5e-3


def test_length_does_not_matter() -> None:
    tex, uv = draw(1, 6, 8, 8, 3), draw(1, 9, 11, 3, seed=1)
    out = texture(tex, uv, boundary_mode="cube")
    for scale in (1e-200, 1e-3, 7.0, 1e200):
        torch.testing.assert_close(texture(tex, uv * scale, boundary_mode="cube"), out, rtol=1e-9, atol=1e-9)
    grad = torch.autograd.grad(out, uv, draw(1, 9, 11, 3, seed=2).detach())[0]
    assert ((grad * uv).sum(-1).abs() <= 1e-9 * (1 + grad.norm(dim=-1) * uv.norm(dim=-1))).all()


@pytest.mark.parametrize("filter_mode", FILTERS)
def test_invalid_directions_give_nothing(filter_mode: str) -> None:
    nan, inf = float("nan"), float("inf")
    bad = [[0.0, 0, 0], [-0.0, 0, 0], [nan, 1, 1], [1, nan, 0], [inf, 1, 1], [1, 1, -inf], [0, nan, 0]]
    uv = torch.tensor(bad, dtype=torch.float64)[None, None].requires_grad_()
    inputs = [draw(1, 6, 4, 4, 2), uv, draw(1, 1, 7, 6, seed=1), draw(1, 1, 7, seed=2)]
    out = texture(*inputs, filter_mode=filter_mode, boundary_mode="cube")
    assert (out == 0).all()
    grads = torch.autograd.grad(out.sum(), inputs, allow_unused=True, materialize_grads=True)
    assert all((grad == 0).all() for grad in grads)


def test_one_cube_for_the_batch() -> None:
    tex, uv = draw(1, 6, 4, 4, 3), draw(3, 5, 7, 3, seed=1)
    torch.testing.assert_close(
        texture(tex, uv, boundary_mode="cube"), texture(tex.expand(3, -1, -1, -1, -1), uv, boundary_mode="cube")
    )


@pytest.mark.parametrize(
    "tex, uv, message",
    [
        (torch.rand(1, 4, 4, 3), torch.rand(1, 2, 2, 3), r"tex must have shape \(N, 6, S, S, C\)"),
        (torch.rand(1, 5, 4, 4, 3), torch.rand(1, 2, 2, 3), r"tex must have shape \(N, 6, S, S, C\)"),
        (torch.rand(1, 6, 4, 8, 3), torch.rand(1, 2, 2, 3), "tex must have square faces"),
        (torch.rand(1, 6, 4, 4, 3), torch.rand(1, 2, 2, 2), r"uv must have shape \(N, h, w, 3\)"),
    ],
)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_wrong_argument_is_named(tex: Tensor, uv: Tensor, message: str, device: str) -> None:
    with pytest.raises(RuntimeError, match=f"diffrast.texture: {message}"):
        texture(tex.to(device), uv.to(device), boundary_mode="cube")


def test_a_cube_is_no_plane() -> None:
    with pytest.raises(RuntimeError, match=r"tex must have shape \(N, H, W, C\)"):
        texture(torch.rand(1, 6, 4, 4, 3), torch.rand(1, 2, 2, 2), boundary_mode="wrap")


@pytest.mark.gpu
@pytest.mark.parametrize("filter_mode", FILTERS)
def test_cuda_agrees_with_the_cpu(filter_mode: str) -> None:
    def inputs(device: str) -> list[Tensor]:
        made = (draw(2, 6, 8, 8, 3), draw(2, 9, 11, 3, seed=1), draw(2, 9, 11, 6, seed=2, scale=0.3))
        return [tensor.detach().float().to(device).requires_grad_() for tensor in made]

    here, there = inputs("cpu"), inputs("cuda")
    out = texture(*here, filter_mode=filter_mode, boundary_mode="cube")
    other = texture(*there, filter_mode=filter_mode, boundary_mode="cube")
    torch.testing.assert_close(other.cpu(), out, rtol=1e-4, atol=1e-4)
    for have, want in zip(torch.autograd.grad(other.sum(), there[:2]), torch.autograd.grad(out.sum(), here[:2])):
        torch.testing.assert_close(have.cpu(), want, rtol=1e-3, atol=1e-3)
