"""antialias against its reference, its conventions, its refusals, and as torch traces it."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import pytest
import torch
from references import scenes
from references.antialias import antialias as reference
from references.antialias import antialias_backward as reference_backward
from references.antialias import antialias_topology as reference_topology
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

import diffrast
from diffrast import antialias, antialias_construct_topology_hash

FORWARD = torch.ops.diffrast.antialias
BACKWARD = torch.ops.diffrast.antialias_backward
TOPOLOGY = torch.ops.diffrast.antialias_topology
SCENES = ["overlap", "fold", "cubes", "behind_the_eye"]


class Call(NamedTuple):
    """The tensors of the operator."""

    color: Tensor
    rast: Tensor
    pos: Tensor
    tri: Tensor
    topology: Tensor


def make_call(scene: str | scenes.Scene = "cubes", channels: int = 3, dtype: torch.dtype = torch.float64) -> Call:
    pos, tri, rast = getattr(scenes, scene)() if isinstance(scene, str) else scene
    color = torch.randn(*rast.shape[:3], channels, generator=torch.Generator().manual_seed(5))
    return Call(color.to(dtype), rast.to(dtype), pos.to(dtype), tri, TOPOLOGY(tri))


def gradient(call: Call, seed: int = 3) -> Tensor:
    return torch.randn(call.color.shape, generator=torch.Generator().manual_seed(seed)).to(call.color.dtype)


def close(have: Tensor, want: Tensor) -> None:
    """Relative to the largest number: a steep edge gives positions gradients of thousands."""
    scale = max(1.0, want.abs().max().item()) if want.numel() else 1.0
    tolerance = 2e-5 if want.dtype == torch.float32 else 1e-12
    torch.testing.assert_close(have, want, rtol=tolerance, atol=tolerance * scale)


# One to several pieces of four channels.
@pytest.mark.parametrize("channels", [1, 3, 4, 9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
@pytest.mark.parametrize("scene", SCENES)
def test_values(scene: str, dtype: torch.dtype, channels: int):
    call = make_call(scene, channels, dtype)
    out = FORWARD(*call)
    assert ((out != call.color).any(-1)).sum() >= 8
    close(out, reference(*call))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
@pytest.mark.parametrize("scene", SCENES)
def test_gradients(scene: str, dtype: torch.dtype):
    call = make_call(scene, dtype=dtype)
    have = BACKWARD(*call, 2.5, gradient(call))
    want = reference_backward(*call, 2.5, gradient(call))
    assert (want[1].abs() > 0).any()
    for a, b in zip(have, want, strict=True):
        close(a, b)


@pytest.mark.parametrize("scene", SCENES)
def test_finite_differences(scene: str):
    call = make_call(scene)

    def of(color: Tensor, pos: Tensor) -> Tensor:
        return antialias(color, call.rast, pos, call.tri, call.topology)

    leaves = (call.color.requires_grad_(), call.pos.requires_grad_())
    assert torch.autograd.gradcheck(of, leaves, eps=1e-7, atol=1e-4, rtol=1e-4)


def half_plane(at: float, axis: int, flipped: bool = False) -> Call:
    """Two pixels side by side (axis 0) or one on the other (1); the first, or with `flipped` the second, is covered
    up to `at`, counted in pixels from the first centre; colours 0 and 1."""
    edge = (at + 0.5) - 1  # the image is two pixels long: [-1, 1]
    outside = 9.0 if flipped else -9.0
    corners = [[edge, -9.0], [edge, 9.0], [outside, 0.0]]
    pos = torch.tensor([[*(corner if axis == 0 else corner[::-1]), 0.0, 1.0] for corner in corners])
    rast = torch.zeros(1, 1, 2, 4)
    rast[0, 0, int(flipped)] = torch.tensor([0.3, 0.3, 0.0, 1.0])
    color = torch.tensor([[[[0.0], [1.0]]]])
    if axis == 1:
        rast, color = rast.transpose(1, 2), color.transpose(1, 2)
    tri = torch.tensor([[0, 1, 2]], dtype=torch.int32)
    return Call(color, rast, pos, tri, TOPOLOGY(tri))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("flipped", [False, True])
@pytest.mark.parametrize(
    "at, want",
    [
        (0.0, [0.5, 1.0]),  # through the first centre: half of that pixel shows the other colour
        (0.25, [0.25, 1.0]),
        (0.5, [0.0, 1.0]),  # halfway: as without
        (0.75, [0.0, 0.75]),
        (1.0, [0.0, 0.5]),
        (-0.1, [0.0, 1.0]),  # beside the segment: no outline between the two
        (1.1, [0.0, 1.0]),
    ],
)
def test_coverage_is_linear_in_the_crossing(at: float, want: list[float], axis: int, flipped: bool):
    """The same on both axes, and whichever of the two pixels is the covered one."""
    out = FORWARD(*half_plane(at, axis, flipped))
    torch.testing.assert_close(out.flatten(), torch.tensor(want), rtol=0, atol=1e-6)


@pytest.mark.parametrize("at", [0.25, 0.5, 0.75])
def test_moving_the_edge_moves_the_mean(at: float):
    """One pixel further to the right takes one pixel's worth of the second colour away, halfway as well."""
    call = half_plane(at, 0)
    pos = call.pos.requires_grad_()
    antialias(*call._replace(pos=pos)[:4]).sum().backward()
    # In an image of two pixels, one pixel is one unit of clip space.
    assert pos.grad[:2, 0].sum().item() == pytest.approx(-1.0, rel=1e-5)
    assert (pos.grad[:, 2] == 0).all()


def two_planes(first_depth: float, second_depth: float) -> Call:
    """Pixel 0 shows triangle 1 up to 0.25, pixel 1 shows triangle 2 from 0.6 on; both have an outline between."""
    left, right = half_plane(0.25, 0), half_plane(0.6, 0, flipped=True)
    rast = left.rast + right.rast
    rast[0, 0, 1, 3] = 2
    rast[0, 0, :, 2] = torch.tensor([first_depth, second_depth])
    tri = torch.tensor([[0, 1, 2], [3, 4, 5]], dtype=torch.int32)
    return Call(left.color, rast, torch.cat([left.pos, right.pos]), tri, TOPOLOGY(tri))


def test_the_nearer_surface_counts():
    torch.testing.assert_close(FORWARD(*two_planes(0.1, 0.2)).flatten(), torch.tensor([0.25, 1.0]))
    torch.testing.assert_close(FORWARD(*two_planes(0.2, 0.1)).flatten(), torch.tensor([0.0, 0.9]))


def test_edges_within_a_surface_are_left_alone():
    """A flat quad of two triangles: the diagonal is no outline, unless the vertices are not shared."""
    pos = torch.tensor([[-9.0, -9, 0, 1], [9, -9.5, 0, 1], [9, 9, 0, 1], [-9, 9.5, 0, 1]])
    shared = torch.tensor([[0, 1, 2], [0, 2, 3]], dtype=torch.int32)
    rast = scenes.draw(pos, shared, 6, 6)
    assert set(rast[..., 3].flatten().tolist()) == {1.0, 2.0}
    color = torch.rand(1, 6, 6, 1)
    assert torch.equal(antialias(color, rast, pos, shared), color)
    apart = torch.tensor([[0, 1, 2], [4, 5, 3]], dtype=torch.int32)
    assert not torch.equal(antialias(color, rast, torch.cat([pos, pos[[0, 2]]]), apart), color)


def test_fold_is_an_outline_and_flat_is_not():
    """The same two triangles: the shared edge is an outline only when both lie on one side of it."""
    call = half_plane(0.25, 0)
    tri = torch.tensor([[0, 1, 2], [1, 0, 3]], dtype=torch.int32)
    for x, want in [(-5.0, 0.25), (5.0, 0.0)]:
        pos = torch.cat([call.pos, torch.tensor([[x, 1.0, 0.5, 1.0]])])
        assert antialias(call.color, call.rast, pos, tri).flatten()[0].item() == pytest.approx(want, abs=1e-6)


def test_boost_scales_the_gradient_of_pos_alone():
    call = make_call()
    plain, boosted = BACKWARD(*call, 1.0, gradient(call)), BACKWARD(*call, 8.0, gradient(call))
    assert torch.equal(plain[0], boosted[0])
    torch.testing.assert_close(8 * plain[1], boosted[1])
    assert torch.equal(FORWARD(*call, 8.0), FORWARD(*call))


TRIANGLES = {
    "cube": scenes.CUBE_FACES,
    "alone": [[0, 1, 2]],
    "fan": [[0, 1, 2], [1, 0, 3], [0, 1, 4], [5, 1, 0], [7, 8, 9]],
    "degenerate": [[0, 0, 0], [1, 1, 2], [2, 1, 1]],
    "large-indices": [[2**31 - 1, 0, 2**31 - 2], [0, 2**31 - 1, 5]],
}


@pytest.mark.parametrize("name", TRIANGLES)
def test_topology(name: str):
    tri = torch.tensor(TRIANGLES[name], dtype=torch.int32)
    have = antialias_construct_topology_hash(tri)
    assert have.dtype == torch.int32 and torch.equal(have, reference_topology(tri))


def test_topology_of_a_large_mesh():
    """A grid of 20000 triangles, shuffled: every ring closes after one or two steps."""
    corner = torch.arange(101 * 101).reshape(101, 101)
    a, b, c, d = (part.flatten() for part in (corner[:-1, :-1], corner[:-1, 1:], corner[1:, :-1], corner[1:, 1:]))
    tri = torch.cat([torch.stack([a, b, c], -1), torch.stack([b, d, c], -1)]).int()
    tri = tri[torch.randperm(len(tri), generator=torch.Generator().manual_seed(0))]
    following = antialias_construct_topology_hash(tri).flatten().long()
    start = torch.arange(len(following))
    assert torch.equal(following[following], start)
    assert (following == start).sum() == 4 * 100


def test_topology_hash_is_only_a_shortcut():
    call = make_call("overlap")
    assert torch.equal(antialias(*call[:4]), antialias(*call[:4], topology_hash=call.topology))


@pytest.mark.parametrize("nonsense", ["far", "negative", "endless"])
def test_a_table_that_is_none_reads_nothing_else(nonsense: str):
    call = make_call("overlap", dtype=torch.float32)
    wrong = {"far": 1 << 30, "negative": -7, "endless": 4}[nonsense]
    out = FORWARD(*call._replace(topology=torch.full_like(call.topology, wrong)))
    assert torch.isfinite(out).all()


@pytest.mark.parametrize("wrong_id", [-1.0, 0.5, 13.0, 1e30, float("nan"), float("inf")])
def test_ids_and_vertices_the_mesh_lacks_have_no_outline(wrong_id: float):
    call = make_call(dtype=torch.float32)
    call.rast[..., 3] = torch.where(call.rast[..., 3] > 0, wrong_id, 0.0)
    assert torch.equal(FORWARD(*call), call.color)
    call = make_call(dtype=torch.float32)
    assert torch.equal(FORWARD(*call._replace(tri=call.tri + 8)), call.color)


EMPTY = {
    "no-images": {"color": torch.zeros(0, 12, 10, 3), "rast": torch.zeros(0, 12, 10, 4), "pos": torch.zeros(0, 8, 4)},
    "no-pixels": {"color": torch.zeros(2, 12, 0, 3), "rast": torch.zeros(2, 12, 0, 4)},
    "no-channels": {"color": torch.zeros(2, 12, 10, 0)},
    "no-triangles": {
        "tri": torch.zeros(0, 3, dtype=torch.int32),
        "topology": torch.zeros(0, 3, dtype=torch.int32),
    },
    "no-vertices": {"pos": torch.zeros(2, 0, 4)},
}


@pytest.mark.parametrize("name", EMPTY)
def test_empty(name: str):
    call = make_call(dtype=torch.float32)._replace(**EMPTY[name])
    assert torch.equal(FORWARD(*call), call.color)
    by_color, by_pos = BACKWARD(*call, 1.0, gradient(call))
    assert by_color.shape == call.color.shape and by_pos.shape == call.pos.shape
    assert torch.equal(TOPOLOGY(call.tri), call.topology)


def crooked(tensor: Tensor) -> Tensor:
    """The same numbers, laid out the other way round in memory."""
    return tensor.permute(*reversed(range(tensor.dim()))).contiguous().permute(*reversed(range(tensor.dim())))


def test_non_contiguous():
    call = make_call()
    bent = Call(*map(crooked, call))
    assert not bent.color.is_contiguous() and torch.equal(TOPOLOGY(bent.tri), call.topology)
    assert FORWARD(*bent).is_contiguous() and torch.equal(FORWARD(*bent), FORWARD(*call))
    expanded = torch.ones(()).double().expand(call.color.shape)
    have, want = BACKWARD(*bent, 1.0, expanded), BACKWARD(*call, 1.0, torch.ones_like(call.color))
    assert all(a.is_contiguous() and torch.equal(a, b) for a, b in zip(have, want, strict=True))


def test_the_same_bits_whatever_the_threads():
    call = make_call(scenes.cubes(2, 64, 48), dtype=torch.float32)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = [FORWARD(*call), *BACKWARD(*call, 1.0, gradient(call)), TOPOLOGY(call.tri)]
        torch.set_num_threads(4)
        four = [FORWARD(*call), *BACKWARD(*call, 1.0, gradient(call)), TOPOLOGY(call.tri)]
    finally:
        torch.set_num_threads(before)
    assert all(map(torch.equal, one, four))


def test_autograd_is_the_backward_operator():
    call = make_call()
    color, pos = call.color.clone().requires_grad_(), call.pos.clone().requires_grad_()
    out = antialias(color, call.rast, pos, call.tri, pos_gradient_boost=3.0)
    have = torch.autograd.grad(out, (color, pos), gradient(call))
    assert all(map(torch.equal, have, BACKWARD(*call, 3.0, gradient(call))))


def test_only_the_gradient_of_pos_is_not_deterministic(monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object) -> None:
        raise RuntimeError("not deterministic")

    monkeypatch.setattr(sys.modules["diffrast.antialiasing"], "alert_not_deterministic", refuse)
    call = make_call()
    color, pos = call.color.clone().requires_grad_(), call.pos.clone().requires_grad_()
    antialias(color, call.rast, call.pos, call.tri).sum().backward()
    with pytest.raises(RuntimeError, match="not deterministic"):
        antialias(color, call.rast, pos, call.tri).sum().backward()


def test_second_derivative_is_refused():
    call = make_call()
    pos = call.pos.clone().requires_grad_()
    out = antialias(call.color, call.rast, pos, call.tri)
    (grad,) = torch.autograd.grad((out * out).sum(), pos, create_graph=True)
    with pytest.raises(RuntimeError, match="can be differentiated once, not twice"):
        grad.sum().backward()


GOOD = make_call(dtype=torch.float32)
WRONG = {
    "color-3d": ("color", GOOD.color[0]),
    "color-half": ("color", GOOD.color.half()),
    "rast-size": ("rast", GOOD.rast[:, 1:]),
    "rast-columns": ("rast", GOOD.rast[..., :3]),
    "rast-double": ("rast", GOOD.rast.double()),
    "pos-columns": ("pos", GOOD.pos[..., :3]),
    "pos-batch": ("pos", GOOD.pos[:1]),
    "pos-1d": ("pos", GOOD.pos[0, 0]),
    "pos-double": ("pos", GOOD.pos.double()),
    "tri-int64": ("tri", GOOD.tri.long()),
    "tri-columns": ("tri", GOOD.tri[:, :2]),
    "topology-int64": ("topology", GOOD.topology.long()),
    "topology-short": ("topology", GOOD.topology[1:]),
}


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("name", WRONG)
def test_wrong_argument_is_named(name: str, device: str):
    """By the kernels and by the fakes alike: what a run refuses must not pass tracing."""
    argument, wrong = WRONG[name]
    call = [tensor.to(device) for tensor in GOOD._replace(**{argument: wrong})]
    with pytest.raises(RuntimeError, match=rf"diffrast\.antialias: {argument} must"):
        FORWARD(*call)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_other_refusals(device: str):
    call = [tensor.to(device) for tensor in GOOD]
    with pytest.raises(RuntimeError, match=r"diffrast\.antialias: grad_out must have shape"):
        BACKWARD(*call, 1.0, call[0][..., :1])
    with pytest.raises(RuntimeError, match=r"diffrast\.antialias: grad_out must have the dtype"):
        BACKWARD(*call, 1.0, call[0].double())
    with pytest.raises(RuntimeError, match=r"diffrast\.antialias_topology: tri must be int32"):
        TOPOLOGY(call[3].long())
    with pytest.raises(
        RuntimeError, match=r"diffrast\.antialias_topology: tri must have shape \(T, 3\), got \(12, 2\)"
    ):
        TOPOLOGY(call[3][:, :2])


@pytest.mark.parametrize("key", ["CPU", "CUDA"])
@pytest.mark.parametrize("name", ["antialias", "antialias_backward", "antialias_topology"])
def test_kernels_are_registered(name: str, key: str):
    if key == "CUDA" and not diffrast.HAS_CUDA:
        pytest.skip("CPU-only build or CPU-only torch")
    assert torch._C._dispatch_has_kernel_for_dispatch_key(f"diffrast::{name}", key)


@pytest.mark.parametrize("scene", ["overlap", "cubes"])
def test_opcheck(scene: str):
    call = make_call(scene, dtype=torch.float32)
    torch.library.opcheck(BACKWARD, (*call, 1.0, gradient(call)))
    torch.library.opcheck(TOPOLOGY, (call.tri,))
    call.color.requires_grad_()
    call.pos.requires_grad_()
    torch.library.opcheck(FORWARD, (*call, 2.0))


def on_fake_cuda(arguments: list[Any], on_cpu: int = -1) -> list[Any]:
    mode = FakeTensorMode()
    return [
        FakeTensor(mode, value.to("meta"), torch.device("cpu" if index == on_cpu else "cuda:0"))
        if isinstance(value, Tensor)
        else value
        for index, value in enumerate(arguments)
    ]


def test_fake_looks_like_the_real_one():
    call = Call(*map(crooked, make_call()))
    arguments = [*call, 1.0, gradient(call)]
    real = [FORWARD(*call), *BACKWARD(*arguments), TOPOLOGY(call.tri)]
    mode = FakeTensorMode()
    fakes = [mode.from_tensor(value) if isinstance(value, Tensor) else value for value in arguments]
    with mode:
        fake = [FORWARD(*fakes[:5]), *BACKWARD(*fakes), TOPOLOGY(fakes[3])]
    for have, want in zip(fake, real, strict=True):
        assert (have.shape, have.stride(), have.dtype) == (want.shape, want.stride(), want.dtype)


def test_fake_cuda():
    arguments = on_fake_cuda([*GOOD, 1.0, gradient(GOOD)])
    results = [FORWARD(*arguments[:5]), *BACKWARD(*arguments), TOPOLOGY(arguments[3])]
    assert {result.device for result in results} == {torch.device("cuda:0")}


@pytest.mark.parametrize("on_cpu", [0, 1, 2, 3, 4, 6])
def test_fake_refuses_mixed_devices(on_cpu: int):
    arguments = on_fake_cuda([*GOOD, 1.0, gradient(GOOD)], on_cpu)
    match = "Unhandled FakeTensor Device Propagation|all tensors to be on the same device|must be on the same device"
    with pytest.raises(RuntimeError, match=match):
        BACKWARD(*arguments)
    if on_cpu < 5:
        with pytest.raises(RuntimeError, match=match):
            FORWARD(*arguments[:5])


def test_compile():
    torch._dynamo.reset()
    call = make_call(dtype=torch.float32)

    def shade(color: Tensor, rast: Tensor, pos: Tensor, tri: Tensor) -> Tensor:
        return antialias(color, rast, pos, tri, pos_gradient_boost=2.0).relu().sum()

    pos = call.pos.clone().requires_grad_()
    have = torch.compile(shade, backend="aot_eager", fullgraph=True)(call.color, call.rast, pos, call.tri)
    want = shade(call.color, call.rast, pos, call.tri)
    torch.testing.assert_close(have, want)
    torch.testing.assert_close(torch.autograd.grad(have, pos), torch.autograd.grad(want, pos))


def test_export_with_dynamic_dimensions():
    class Shade(torch.nn.Module):
        def forward(self, color: Tensor, rast: Tensor, pos: Tensor, tri: Tensor) -> Tensor:
            return antialias(color, rast, pos, tri)

    call = make_call(dtype=torch.float32)
    batch, width = torch.export.Dim("batch", min=2, max=64), torch.export.Dim("width", min=2, max=4096)
    sizes = {0: batch, 2: width}
    program = torch.export.export(Shade(), tuple(call[:4]), dynamic_shapes=(sizes, sizes, {0: batch}, {}))
    other = make_call(scenes.cubes(3, 12, 7), dtype=torch.float32)[:4]
    torch.testing.assert_close(program.module()(*other), Shade()(*other))


@pytest.mark.gpu
@pytest.mark.parametrize("scene", SCENES)
def test_cuda_is_cpu(scene: str):
    call = make_call(scene, channels=5, dtype=torch.float32)
    on_cuda = [tensor.cuda() for tensor in call]
    assert torch.equal(TOPOLOGY(on_cuda[3]).cpu(), call.topology)
    out, (by_color, by_pos) = FORWARD(*on_cuda), BACKWARD(*on_cuda, 1.0, gradient(call).cuda())
    want = [FORWARD(*call), *BACKWARD(*call, 1.0, gradient(call))]
    for a, b in zip((out, by_color, by_pos), want, strict=True):
        close(a.cpu(), b)
    assert torch.equal(FORWARD(*on_cuda), out)
    assert torch.equal(BACKWARD(*on_cuda, 1.0, gradient(call).cuda())[0], by_color)


@pytest.mark.gpu
@pytest.mark.parametrize("on_cpu", range(5))
def test_cuda_refuses_mixed_devices(on_cpu: int):
    call = [tensor if i == on_cpu else tensor.cuda() for i, tensor in enumerate(GOOD)]
    with pytest.raises(RuntimeError, match="same device"):
        FORWARD(*call)


@pytest.mark.gpu
def test_cuda_graph():
    """Capture fails if anything waits for the device; the sort of the edges must not."""
    call = [tensor.cuda() for tensor in GOOD]
    want = antialias(*call[:4])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        have = antialias(*call[:4])
    graph.replay()
    assert torch.equal(have, want)
