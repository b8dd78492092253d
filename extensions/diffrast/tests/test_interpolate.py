"""interpolate against its reference, its conventions, its refusals, and as torch traces it."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import pytest
import torch
from references import scenes
from references.interpolate import interpolate as reference
from references.interpolate import interpolate_backward as reference_backward
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

import diffrast
from diffrast import interpolate

FORWARD = torch.ops.diffrast.interpolate
BACKWARD = torch.ops.diffrast.interpolate_backward
TOLERANCE = {torch.float32: {"rtol": 1e-5, "atol": 1e-5}, torch.float64: {"rtol": 1e-12, "atol": 1e-12}}


class Call(NamedTuple):
    """The arguments of the operator."""

    attr: Tensor
    rast: Tensor
    tri: Tensor
    rast_db: Tensor | None
    diff_attrs: list[int]

    def tensors(self) -> dict[str, Tensor]:
        return {name: value for name, value in self._asdict().items() if isinstance(value, Tensor)}


def make_call(
    scene: scenes.Scene | None = None,
    attributes: int = 5,
    batch: int | None = 2,
    diff_attrs: Any = (3, 0),
    dtype: torch.dtype = torch.float64,
) -> Call:
    """Random attributes on a scene; `batch` None is the shape (V, A)."""
    pos, tri, rast = scene or scenes.cubes()
    generator = torch.Generator().manual_seed(7)
    attr = torch.randn(*(() if batch is None else (batch,)), pos.shape[-2], attributes, generator=generator)
    rast_db = torch.randn(rast.shape, generator=generator)
    return Call(attr.to(dtype), rast.to(dtype), tri, rast_db.to(dtype), list(diff_attrs))


def gradients(call: Call, seed: int = 3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(*call.rast.shape[:3], call.attr.shape[-1]), (*call.rast.shape[:3], 2 * len(call.diff_attrs))]
    out, out_da = (torch.randn(shape, generator=generator).to(call.attr.dtype) for shape in shapes)
    return out, out_da


# One to several pieces of four attributes; a selection that needs a second pass of 64.
CALLS = {
    "cubes": {},
    "one-attribute": {"attributes": 1, "diff_attrs": [0]},
    "nine-attributes": {"attributes": 9, "diff_attrs": [8, 1, 1, 4, 0]},
    "shared": {"batch": 1},
    "without-batch": {"batch": None},
    "no-derivatives": {"diff_attrs": []},
    "many-selected": {"attributes": 70, "diff_attrs": range(70)},
    "range-mode": {"scene": scenes.overlap(), "batch": None},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
@pytest.mark.parametrize("name", CALLS)
def test_values(name: str, dtype: torch.dtype):
    call = make_call(dtype=dtype, **CALLS[name])
    for have, want in zip(FORWARD(*call), reference(*call), strict=True):
        torch.testing.assert_close(have, want, **TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
@pytest.mark.parametrize("name", CALLS)
def test_gradients(name: str, dtype: torch.dtype):
    call = make_call(dtype=dtype, **CALLS[name])
    grads = gradients(call)
    names = ["attr", "rast", "rast_db"]
    for what, have, want in zip(names, BACKWARD(*call, *grads), reference_backward(*call, *grads), strict=True):
        torch.testing.assert_close(have, want, **TOLERANCE[dtype], msg=lambda text, what=what: f"{what}: {text}")


@pytest.mark.parametrize("name", ["cubes", "shared", "no-derivatives", "range-mode"])
def test_finite_differences(name: str):
    call = make_call(**CALLS[name])
    drawn = call.rast[..., 3:] > 0
    ids = call.rast[..., 3:]

    def with_uv(attr: Tensor, uv: Tensor, rast_db: Tensor) -> tuple[Tensor, Tensor]:
        rast = torch.cat([uv, call.rast[..., 2:3], ids], dim=-1)
        return interpolate(attr, rast, call.tri, rast_db, call.diff_attrs)

    uv = torch.where(drawn, call.rast[..., :2], torch.zeros(()).double())
    leaves = tuple(tensor.clone().requires_grad_() for tensor in (call.attr, uv, call.rast_db))
    assert torch.autograd.gradcheck(with_uv, leaves, fast_mode=True)


def test_corners_of_the_barycentrics():
    """(u, v) = (1, 0) is the first vertex, (0, 1) the second, (0, 0) the third."""
    attr = torch.tensor([[10.0], [20.0], [30.0]])
    tri = torch.tensor([[2, 0, 1]], dtype=torch.int32)
    rast = torch.tensor([[[[1.0, 0, 0, 1], [0, 1, 0, 1], [0, 0, 0, 1], [0.5, 0.5, 0, 0]]]])
    out, out_da = interpolate(attr, rast, tri)
    assert out.flatten().tolist() == [30, 10, 20, 0]
    assert out_da.shape == (1, 1, 4, 0)


def test_derivatives_lie_side_by_side():
    attr = torch.tensor([[1.0, 100.0], [2.0, 300.0], [4.0, 700.0]])
    tri = torch.tensor([[0, 1, 2]], dtype=torch.int32)
    rast = torch.tensor([[[[0.2, 0.3, 0, 1]]]])
    rast_db = torch.tensor([[[[1.0, 10.0, 100.0, 1000.0]]]])  # du/dX, du/dY, dv/dX, dv/dY
    _, out_da = interpolate(attr, rast, tri, rast_db, diff_attrs=[1, 0])
    assert out_da.flatten().tolist() == [-40600, -406000, -203, -2030]
    _, everything = interpolate(attr, rast, tri, rast_db, diff_attrs="all")
    assert everything.flatten().tolist() == [-203, -2030, -40600, -406000]
    _, nothing = interpolate(attr, rast, tri, rast_db)
    assert nothing.shape == (1, 1, 1, 0)


@pytest.mark.parametrize("wrong_id", [-1.0, 0.5, 13.0, 1e30, float("nan"), float("inf")])
def test_ids_the_mesh_lacks_count_as_nothing(wrong_id: float):
    call = make_call(dtype=torch.float32)
    call.rast[0, 5, 4:7, 3] = wrong_id
    out, out_da = FORWARD(*call)
    assert (out[0, 5, 4:7] == 0).all() and (out_da[0, 5, 4:7] == 0).all()
    _, by_rast, by_db = BACKWARD(*call, *gradients(call))
    assert (by_rast[0, 5, 4:7] == 0).all() and (by_db[0, 5, 4:7] == 0).all()


def test_vertices_the_mesh_lacks_count_as_nothing():
    call = make_call(dtype=torch.float32)
    tri = call.tri.clone()
    tri[:, 1] = 8
    assert (FORWARD(*call._replace(tri=tri))[0] == 0).all()
    tri[:, 1] = -1
    assert (BACKWARD(*call._replace(tri=tri), *gradients(call))[0] == 0).all()


def test_ids_beyond_what_float32_counts():
    """From 2^24 on, ids go through the floats that follow, one after the other."""
    count = (1 << 24) + 3
    tri = torch.zeros(count, 3, dtype=torch.int32)
    tri[-3:] = torch.tensor([[1], [2], [3]])
    attr = torch.arange(4.0)[:, None]
    ids = torch.tensor([1 << 24, (1 << 24) + 2, (1 << 24) + 4, (1 << 24) + 6], dtype=torch.float32)
    assert (ids.view(torch.int32) - ids[:1].view(torch.int32)).tolist() == [0, 1, 2, 3]
    rast = torch.zeros(1, 1, 4, 4)
    rast[..., 3] = ids
    assert interpolate(attr, rast, tri)[0].flatten().tolist() == [0, 1, 2, 3]


def test_constant_attributes_have_no_gradient():
    """The sums over pixels are left out, and the other gradients are the same."""
    call = make_call()
    by_attr, *others = BACKWARD(*call, *gradients(call), False)
    assert by_attr.shape == (0,)
    assert all(map(torch.equal, others, BACKWARD(*call, *gradients(call))[1:]))
    rast = call.rast.clone().requires_grad_()
    out, _ = interpolate(call.attr, rast, call.tri)
    (have,) = torch.autograd.grad(out, rast, gradients(call)[0])
    alone = call._replace(rast_db=None, diff_attrs=[])
    assert torch.equal(have, BACKWARD(*alone, *gradients(alone))[1])


def test_only_the_gradient_of_attr_is_not_deterministic(monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object) -> None:
        raise RuntimeError("not deterministic")

    monkeypatch.setattr(sys.modules["diffrast.interpolation"], "alert_not_deterministic", refuse)
    call = make_call()
    attr, rast = call.attr.clone().requires_grad_(), call.rast.clone().requires_grad_()
    interpolate(call.attr, rast, call.tri)[0].sum().backward()
    with pytest.raises(RuntimeError, match="not deterministic"):
        interpolate(attr, rast, call.tri)[0].sum().backward()


EMPTY = {
    "no-images": {
        "attr": torch.zeros(0, 8, 5),
        "rast": torch.zeros(0, 12, 10, 4),
        "rast_db": torch.zeros(0, 12, 10, 4),
    },
    "no-pixels": {"rast": torch.zeros(2, 0, 10, 4), "rast_db": torch.zeros(2, 0, 10, 4)},
    "no-triangles": {"tri": torch.zeros(0, 3, dtype=torch.int32)},
    "no-vertices": {"attr": torch.zeros(2, 0, 5)},
    "no-attributes": {"attr": torch.zeros(2, 8, 0), "diff_attrs": []},
}


@pytest.mark.parametrize("name", EMPTY)
def test_empty(name: str):
    call = make_call(dtype=torch.float32)._replace(**EMPTY[name])
    out, out_da = FORWARD(*call)
    assert out.shape == (*call.rast.shape[:3], call.attr.shape[-1]) and (out == 0).all()
    assert out_da.shape == (*call.rast.shape[:3], 2 * len(call.diff_attrs)) and (out_da == 0).all()
    grads = BACKWARD(*call, *gradients(call))
    for grad, like in zip(grads, (call.attr, call.rast, call.rast_db), strict=True):
        assert grad.shape == like.shape and (grad == 0).all()


def crooked(tensor: Tensor) -> Tensor:
    """The same numbers, laid out the other way round in memory."""
    return tensor.permute(*reversed(range(tensor.dim()))).contiguous().permute(*reversed(range(tensor.dim())))


def test_non_contiguous():
    call = make_call()
    grads = gradients(call)
    bent = Call(*(crooked(value) if isinstance(value, Tensor) else value for value in call))
    assert not bent.attr.is_contiguous()
    for have, want in zip(FORWARD(*bent), FORWARD(*call), strict=True):
        assert have.is_contiguous()
        torch.testing.assert_close(have, want, rtol=0, atol=0)
    expanded = [torch.ones(()).double().expand(grad.shape) for grad in grads]
    for have, want in zip(BACKWARD(*bent, *expanded), BACKWARD(*call, *map(torch.ones_like, grads)), strict=True):
        assert have.is_contiguous()
        torch.testing.assert_close(have, want, rtol=0, atol=0)


def test_the_same_bits_whatever_the_threads():
    call = make_call(scenes.cubes(2, 64, 48), dtype=torch.float32)
    grads = gradients(call)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = [*FORWARD(*call), *BACKWARD(*call, *grads)]
        torch.set_num_threads(4)
        four = [*FORWARD(*call), *BACKWARD(*call, *grads)]
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(one, four, strict=True))


def test_autograd_is_the_backward_operator():
    call = make_call()
    leaves = [tensor.clone().requires_grad_() for tensor in (call.attr, call.rast, call.rast_db)]
    results = interpolate(leaves[0], leaves[1], call.tri, leaves[2], call.diff_attrs)
    grads = gradients(call)
    have = torch.autograd.grad(results, leaves, grads)
    for a, b in zip(have, BACKWARD(*call, *grads), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    assert (have[1][..., 2:] == 0).all()  # depth and id carry no gradient


def test_one_result_alone_has_gradients():
    call = make_call()
    attr = call.attr.clone().requires_grad_()
    out, out_da = interpolate(attr, call.rast, call.tri, call.rast_db, "all")
    (by_out,) = torch.autograd.grad(out.sum(), attr, retain_graph=True)
    (by_da,) = torch.autograd.grad(out_da.sum(), attr)
    assert by_out.abs().sum() > 0 and by_da.abs().sum() > 0


def test_second_derivative_is_refused():
    call = make_call()
    attr = call.attr.clone().requires_grad_()
    out, _ = interpolate(attr, call.rast, call.tri)
    (grad,) = torch.autograd.grad((out * out).sum(), attr, create_graph=True)
    with pytest.raises(RuntimeError, match="can be differentiated once, not twice"):
        grad.sum().backward()


GOOD = make_call(dtype=torch.float32)
WRONG = {
    "attr-1d": ("attr", GOOD.attr[0, 0]),
    "attr-batch": ("attr", GOOD.attr.expand(2, -1, -1).repeat(2, 1, 1)),
    "attr-half": ("attr", GOOD.attr.half()),
    "attr-int": ("attr", GOOD.attr.int()),
    "rast-3d": ("rast", GOOD.rast[0]),
    "rast-columns": ("rast", GOOD.rast[..., :3]),
    "rast-double": ("rast", GOOD.rast.double()),
    "tri-columns": ("tri", GOOD.tri[:, :2]),
    "tri-1d": ("tri", GOOD.tri[0]),
    "tri-int64": ("tri", GOOD.tri.long()),
    "rast_db-size": ("rast_db", GOOD.rast_db[:, :5]),
    "rast_db-double": ("rast_db", GOOD.rast_db.double()),
    "rast_db-missing": ("rast_db", None),
    "diff_attrs-too-large": ("diff_attrs", [5]),
    "diff_attrs-negative": ("diff_attrs", [-1]),
}


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("name", WRONG)
def test_wrong_argument_is_named(name: str, device: str):
    """By the kernels and by the fakes alike: what a run refuses must not pass tracing."""
    argument, wrong = WRONG[name]
    call = GOOD._replace(**{argument: wrong})
    call = Call(*(value.to(device) if isinstance(value, Tensor) else value for value in call))
    with pytest.raises(RuntimeError, match=rf"diffrast\.interpolate: {'diff_attrs' if wrong is None else argument} "):
        interpolate(*call)


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("which", ["grad_out", "grad_out_da"])
def test_backward_checks_its_gradients(which: str, device: str):
    out, out_da = gradients(GOOD)
    wrong = (out[..., :1], out_da) if which == "grad_out" else (out, out_da.double())
    arguments = [value.to(device) if isinstance(value, Tensor) else value for value in (*GOOD, *wrong)]
    with pytest.raises(RuntimeError, match=rf"diffrast\.interpolate: {which} must"):
        BACKWARD(*arguments)


def test_diff_attrs_is_a_list_or_all():
    with pytest.raises(RuntimeError, match="diff_attrs must be a list of indices or 'all', got 'some'"):
        interpolate(*GOOD[:4], diff_attrs="some")


@pytest.mark.parametrize("key", ["CPU", "CUDA"])
@pytest.mark.parametrize("name", ["interpolate", "interpolate_backward"])
def test_kernels_are_registered(name: str, key: str):
    if key == "CUDA" and not diffrast.HAS_CUDA:
        pytest.skip("CPU-only build or CPU-only torch")
    assert torch._C._dispatch_has_kernel_for_dispatch_key(f"diffrast::{name}", key)


@pytest.mark.parametrize("name", ["cubes", "without-batch", "no-derivatives"])
def test_opcheck(name: str):
    call = make_call(dtype=torch.float32, **CALLS[name])
    torch.library.opcheck(BACKWARD, (*call, *gradients(call)))
    torch.library.opcheck(BACKWARD, (*call, *gradients(call), False))
    leaves = [tensor.requires_grad_() for tensor in (call.attr, call.rast, call.rast_db)]
    torch.library.opcheck(FORWARD, (leaves[0], leaves[1], call.tri, leaves[2], call.diff_attrs))
    torch.library.opcheck(FORWARD, (leaves[0], leaves[1], call.tri, None, []))


def like(fake: Tensor, real: Tensor) -> bool:
    return (fake.shape, fake.stride(), fake.dtype) == (real.shape, real.stride(), real.dtype)


@pytest.mark.parametrize("to_attr", [True, False])
@pytest.mark.parametrize("with_db", [True, False])
def test_fake_looks_like_the_real_one(with_db: bool, to_attr: bool):
    call = make_call() if with_db else make_call(diff_attrs=[])._replace(rast_db=None)
    call = Call(*(crooked(value) if isinstance(value, Tensor) else value for value in call))
    arguments = [*call, *gradients(call), to_attr]
    real = [*FORWARD(*call), *BACKWARD(*arguments)]
    mode = FakeTensorMode()
    fakes = [mode.from_tensor(value) if isinstance(value, Tensor) else value for value in arguments]
    with mode:
        fake = [*FORWARD(*fakes[:5]), *BACKWARD(*fakes)]
    assert all(map(like, fake, real))


def on_fake_cuda(arguments: list[Any], on_cpu: int = -1) -> list[Any]:
    mode = FakeTensorMode()
    return [
        FakeTensor(mode, value.to("meta"), torch.device("cpu" if index == on_cpu else "cuda:0"))
        if isinstance(value, Tensor)
        else value
        for index, value in enumerate(arguments)
    ]


def test_fake_cuda():
    arguments = on_fake_cuda([*GOOD, *gradients(GOOD)])
    results = [*FORWARD(*arguments[:5]), *BACKWARD(*arguments)]
    assert {result.device for result in results} == {torch.device("cuda:0")}


@pytest.mark.parametrize("on_cpu", [0, 1, 2, 3, 5, 6])
def test_fake_refuses_mixed_devices(on_cpu: int):
    arguments = on_fake_cuda([*GOOD, *gradients(GOOD)], on_cpu)
    match = "Unhandled FakeTensor Device Propagation|all tensors to be on the same device|must be on the same device"
    with pytest.raises(RuntimeError, match=match):
        BACKWARD(*arguments)
    if on_cpu < 5:
        with pytest.raises(RuntimeError, match=match):
            FORWARD(*arguments[:5])


def test_compile():
    torch._dynamo.reset()
    call = make_call(dtype=torch.float32)

    def shade(attr: Tensor, rast: Tensor, tri: Tensor, rast_db: Tensor) -> Tensor:
        out, out_da = interpolate(attr, rast, tri, rast_db, [1, 2])
        return out.relu().sum() + out_da.sin().sum()

    attr = call.attr.clone().requires_grad_()
    have = torch.compile(shade, backend="aot_eager", fullgraph=True)(attr, call.rast, call.tri, call.rast_db)
    want = shade(attr, call.rast, call.tri, call.rast_db)
    torch.testing.assert_close(have, want)
    torch.testing.assert_close(torch.autograd.grad(have, attr), torch.autograd.grad(want, attr))


def test_export_with_dynamic_dimensions():
    class Shade(torch.nn.Module):
        def forward(self, attr: Tensor, rast: Tensor, tri: Tensor, rast_db: Tensor) -> tuple[Tensor, Tensor]:
            return interpolate(attr, rast, tri, rast_db, [0, 2])

    call = make_call(dtype=torch.float32)
    batch, height = torch.export.Dim("batch", min=2, max=64), torch.export.Dim("height", min=2, max=4096)
    sizes = {0: batch, 1: height}
    arguments = call[:4]
    program = torch.export.export(Shade(), arguments, dynamic_shapes=({0: batch}, sizes, {}, sizes))
    other = make_call(scenes.cubes(3, 7, 10), batch=3, dtype=torch.float32)[:4]
    for have, want in zip(program.module()(*other), Shade()(*other), strict=True):
        torch.testing.assert_close(have, want)


@pytest.mark.gpu
@pytest.mark.parametrize("name", CALLS)
def test_cuda_is_cpu(name: str):
    call = make_call(dtype=torch.float32, **CALLS[name])
    arguments = [*call, *gradients(call)]
    on_cuda = [value.cuda() if isinstance(value, Tensor) else value for value in arguments]
    have = [*FORWARD(*on_cuda[:5]), *BACKWARD(*on_cuda)]
    for a, b in zip(have, [*FORWARD(*call), *BACKWARD(*arguments)], strict=True):
        torch.testing.assert_close(a.cpu(), b, **TOLERANCE[torch.float32])
    again = [*FORWARD(*on_cuda[:5]), *BACKWARD(*on_cuda)[1:]]
    assert all(map(torch.equal, again, [*have[:2], *have[3:]]))


@pytest.mark.gpu
def test_cuda_refuses_f64():
    call = [value.cuda() if isinstance(value, Tensor) else value for value in make_call()]
    with pytest.raises(RuntimeError, match=r"attr must be float32 \(or float64 on the CPU\)"):
        FORWARD(*call)


@pytest.mark.gpu
@pytest.mark.parametrize("on_cpu", [0, 1, 2, 3])
def test_cuda_refuses_mixed_devices(on_cpu: int):
    call = [value.cuda() if isinstance(value, Tensor) and i != on_cpu else value for i, value in enumerate(GOOD)]
    with pytest.raises(RuntimeError, match="same device"):
        FORWARD(*call)
