"""rasterize without data: fakes, opcheck, export and compile."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

import diffrast as dr

OP = torch.ops.diffrast.rasterize
BACKWARD = torch.ops.diffrast.rasterize_backward
MIXED_DEVICES = (
    "Unhandled FakeTensor Device Propagation|all tensors to be on the same device|must be on the same device"
)


def mesh(dtype: torch.dtype = torch.float32, *, images: int = 2, grad: bool = False) -> tuple[Tensor, Tensor]:
    pos = torch.rand(images, 9, 4, dtype=dtype, generator=torch.Generator().manual_seed(0))
    pos[..., 3] += 1
    return pos.requires_grad_(grad), torch.arange(9, dtype=torch.int32).view(3, 3)


def arguments(kind: str, *, grad: bool = False) -> tuple:
    pos, tri = mesh(grad=grad)
    if kind == "ranges":
        ranges = torch.tensor([[0, 3], [1, 1]], dtype=torch.int32)
        return pos[0].detach().requires_grad_(grad), tri, 6, 7, ranges, None, True
    peel = OP(pos.detach(), tri, 6, 7, None, None, False)[0] if kind == "peel" else None
    return pos, tri, 6, 7, None, peel, kind != "no-db"


KINDS = ["plain", "no-db", "ranges", "peel"]


@pytest.mark.parametrize("key", ["CPU", "CUDA"])
@pytest.mark.parametrize("name", ["rasterize", "rasterize_backward"])
def test_kernels_are_registered(name: str, key: str):
    if key == "CUDA" and not dr.HAS_CUDA:
        pytest.skip("CPU-only build or CPU-only torch")
    assert torch._C._dispatch_has_kernel_for_dispatch_key(f"diffrast::{name}", key)


@pytest.mark.parametrize("grad", [False, True], ids=["", "grad"])
@pytest.mark.parametrize("kind", KINDS)
def test_opcheck(kind: str, grad: bool):
    torch.library.opcheck(OP, arguments(kind, grad=grad))


@pytest.mark.parametrize("db", [False, True], ids=["", "db"])
def test_opcheck_backward(db: bool):
    pos, tri = mesh()
    rast, rast_db = OP(pos, tri, 6, 7, None, None, True)
    torch.library.opcheck(BACKWARD, (pos, tri, rast, torch.rand_like(rast), rast_db if db else None))


@pytest.mark.parametrize("kind", KINDS)
def test_fake_looks_like_the_real_one(kind: str):
    real = OP(*arguments(kind))
    mode = FakeTensorMode()
    fakes = [mode.from_tensor(item) if isinstance(item, Tensor) else item for item in arguments(kind)]
    with mode:
        fake = OP(*fakes)
    for have, want in zip(fake, real, strict=True):
        assert (have.shape, have.stride(), have.dtype, have.device) == (
            want.shape,
            want.stride(),
            want.dtype,
            want.device,
        )


def on_cuda(items: tuple, on_cpu: int = -1) -> list:
    """Fake CUDA tensors on a machine without a GPU, one of them on the CPU."""
    mode = FakeTensorMode()
    devices = ["cpu" if index == on_cpu else "cuda:0" for index in range(len(items))]
    return [
        FakeTensor(mode, item.to("meta"), torch.device(device)) if isinstance(item, Tensor) else item
        for item, device in zip(items, devices, strict=True)
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_fake_cuda(kind: str):
    assert [out.device for out in OP(*on_cuda(arguments(kind)))] == [torch.device("cuda:0")] * 2


@pytest.mark.parametrize("on_cpu", [0, 1, 5])
def test_fake_refuses_mixed_devices(on_cpu: int):
    with pytest.raises(RuntimeError, match=MIXED_DEVICES):
        OP(*on_cuda(arguments("peel"), on_cpu))


def test_ranges_may_stay_on_the_cpu():
    assert OP(*on_cuda(arguments("ranges"), 4))[0].device == torch.device("cuda:0")


@pytest.mark.parametrize("on_cpu", range(5))
def test_fake_backward_refuses_mixed_devices(on_cpu: int):
    pos, tri = mesh()
    rast, rast_db = OP(pos, tri, 6, 7, None, None, True)
    with pytest.raises(RuntimeError, match=MIXED_DEVICES):
        BACKWARD(*on_cuda((pos, tri, rast, rast, rast_db), on_cpu))


def test_float64_is_for_the_cpu():
    with pytest.raises(RuntimeError, match="pos must be float32"):
        OP(*on_cuda((*mesh(torch.float64), 6, 7, None, None, True)))


class Draw(torch.nn.Module):
    def forward(self, pos: Tensor, tri: Tensor) -> Tensor:
        context = dr.RasterizeCudaContext()
        rast, rast_db = dr.rasterize(context, pos, tri, (6, 7))
        with dr.DepthPeeler(context, pos, tri, (6, 7), grad_db=False) as peeler:
            peeler.rasterize_next_layer()
            second, _ = peeler.rasterize_next_layer()
        return torch.cat([rast, rast_db, second], -1)


def test_export():
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(Draw(), mesh(), dynamic_shapes=({0: batch}, {}), strict=False)
    other = mesh(images=5)
    assert torch.equal(program.module()(*other), Draw()(*other))


@pytest.mark.parametrize("dynamic", [False, True])
def test_compile(dynamic: bool):
    compiled = torch.compile(Draw(), fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for images in (2, 3):
        pos, tri = mesh(images=images, grad=True)
        have, want = compiled(pos, tri), Draw()(pos, tri)
        assert torch.equal(have, want)
        grads = [torch.autograd.grad(out.square().sum(), pos)[0] for out in (have, want)]
        assert torch.equal(*grads)
