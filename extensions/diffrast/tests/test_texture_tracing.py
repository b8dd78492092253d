"""texture's operators without data: fakes, opcheck, compile, export."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

import diffrast
from diffrast import texture, texture_construct_mip

OPS = torch.ops.diffrast
NAMES = ["texture", "texture_backward", "build_mips", "build_mips_backward"]
# torch <= 2.12, torch >= 2.13, and our own words.
MIXED_DEVICES = (
    "Unhandled FakeTensor Device Propagation|all tensors to be on the same device|must be on the same device"
)


def forward_arguments(
    boundary: str = "wrap", filter_mode: str = "linear-mipmap-linear", *, grad: bool = False
) -> list[Any]:
    cube, mipmapped = boundary == "cube", "mipmap" in filter_mode
    axes = 3 if cube else 2
    tex = torch.rand((1, 6, 4, 4, 3) if cube else (1, 4, 4, 3), requires_grad=grad)
    mip = torch.rand(1, (6 if cube else 1) * 5, 3, requires_grad=grad) if mipmapped else None
    uv = torch.rand(2, 3, 5, axes, requires_grad=grad)
    uv_da = torch.rand(2, 3, 5, 2 * axes, requires_grad=grad) if mipmapped else None
    bias = torch.rand(2, 3, 5, requires_grad=grad) if mipmapped else None
    return [tex, mip, uv, uv_da, bias, filter_mode, boundary, 2 if mipmapped else 0]


def arguments(name: str, **modes: Any) -> list[Any]:
    if name == "texture":
        return forward_arguments(**modes)
    if name == "texture_backward":
        return [*forward_arguments(**modes), torch.rand(2, 3, 5, 3), True, True]
    if name == "build_mips":
        return [torch.rand(2, 8, 4, 3), 3]
    return [torch.rand(2, 8 + 2 + 1, 3), 8, 4, False, 3]


def answers(result: Tensor | tuple[Tensor, ...]) -> list[Tensor]:
    return [result] if isinstance(result, Tensor) else list(result)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("key", ["CPU", "CUDA"])
def test_kernels_are_registered(name: str, key: str) -> None:
    if key == "CUDA" and not diffrast.HAS_CUDA:
        pytest.skip("CPU-only build or CPU-only torch")
    assert torch._C._dispatch_has_kernel_for_dispatch_key(f"diffrast::{name}", key)


@pytest.mark.parametrize("boundary", ["wrap", "zero", "cube"])
@pytest.mark.parametrize("filter_mode", ["nearest", "linear", "linear-mipmap-nearest", "linear-mipmap-linear"])
def test_opcheck_texture(boundary: str, filter_mode: str) -> None:
    torch.library.opcheck(OPS.texture.default, forward_arguments(boundary, filter_mode, grad=True))
    torch.library.opcheck(
        OPS.texture_backward.default, arguments("texture_backward", boundary=boundary, filter_mode=filter_mode)
    )


def test_opcheck_mips() -> None:
    torch.library.opcheck(OPS.build_mips.default, (torch.rand(2, 8, 4, 3, requires_grad=True), 3))
    torch.library.opcheck(OPS.build_mips.default, (torch.rand(2, 6, 4, 4, 3, requires_grad=True), 2))
    torch.library.opcheck(OPS.build_mips_backward.default, arguments("build_mips_backward"))


@pytest.mark.parametrize("crooked", [False, True], ids=["contiguous", "transposed"])
@pytest.mark.parametrize("name", NAMES)
def test_fake_looks_like_the_real_one(name: str, crooked: bool) -> None:
    given = arguments(name)
    if crooked:
        given = [a.movedim(0, -1).contiguous().movedim(-1, 0) if isinstance(a, Tensor) else a for a in given]
    mode = FakeTensorMode()
    faked = [mode.from_tensor(a) if isinstance(a, Tensor) else a for a in given]
    real = answers(getattr(OPS, name)(*given))
    with mode:
        fake = answers(getattr(OPS, name)(*faked))
    for have, want in zip(fake, real):
        assert (have.shape, have.stride(), have.dtype, have.device) == (
            want.shape,
            want.stride(),
            want.dtype,
            want.device,
        )


def fake_on_cuda(given: list[Any], on_cpu: int = -1) -> list[Any]:
    """Fake CUDA tensors on a machine without a GPU, one of them on the CPU."""
    mode = FakeTensorMode()
    devices = ["cpu" if index == on_cpu else "cuda:0" for index in range(len(given))]
    return [
        FakeTensor(mode, a.to("meta"), torch.device(device)) if isinstance(a, Tensor) else a
        for a, device in zip(given, devices)
    ]


@pytest.mark.parametrize("name", NAMES)
def test_fake_cuda(name: str) -> None:
    for out in answers(getattr(OPS, name)(*fake_on_cuda(arguments(name)))):
        assert out.device == torch.device("cuda:0")


@pytest.mark.parametrize(
    "name, on_cpu", [("texture", i) for i in range(5)] + [("texture_backward", i) for i in (*range(5), 8)]
)
def test_fake_refuses_mixed_devices(name: str, on_cpu: int) -> None:
    with pytest.raises(RuntimeError, match=MIXED_DEVICES):
        getattr(OPS, name)(*fake_on_cuda(arguments(name), on_cpu))


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize(
    "name, index, value, message",
    [
        ("texture", 5, "cubic", "filter_mode must be"),
        ("texture", 6, "mirror", "boundary_mode must be"),
        ("texture", 0, torch.rand(1, 0, 4, 3), r"tex must have sides from 1 to 2\^24"),
        ("texture", 0, torch.rand(1, 6, 4, 3), "tex of 6 x 4 cannot be halved 2 times"),
        ("texture", 7, -1, "tex of 4 x 4 cannot be halved -1 times"),
        ("build_mips", 1, 4, "tex of 8 x 4 cannot be halved 4 times"),
    ],
)
def test_fakes_and_kernels_refuse_the_same(name: str, index: int, value: Any, message: str, device: str) -> None:
    given = arguments(name)
    given[index] = value
    given = [a.to(device) if isinstance(a, Tensor) else a for a in given]
    with pytest.raises(RuntimeError, match=f"diffrast.{name}: {message}"):
        getattr(OPS, name)(*given)


def test_fake_refuses_float64_on_cuda() -> None:
    given = [a.double() if isinstance(a, Tensor) else a for a in forward_arguments()]
    with pytest.raises(RuntimeError, match=r"tex must be float32 \(or float64 on the CPU\)"):
        OPS.texture(*fake_on_cuda(given))


class Shade(torch.nn.Module):
    def __init__(self, boundary: str, stack: str) -> None:
        super().__init__()
        self.boundary, self.stack = boundary, stack

    def forward(self, tex: Tensor, uv: Tensor, uv_da: Tensor) -> Tensor:
        cube = self.boundary == "cube"
        mip = texture_construct_mip(tex, cube_mode=cube) if self.stack == "made before" else None
        if self.stack == "own":
            mip = [tex[:, : tex.shape[1] // 2, : tex.shape[2] // 2] * 2]
        return texture(tex, uv, uv_da, mip=mip, boundary_mode=self.boundary).relu()


def shade_arguments(boundary: str, batch: int = 2, height: int = 3) -> list[Tensor]:
    shape, axes = ((1, 6, 4, 4, 3), 3) if boundary == "cube" else ((1, 8, 4, 3), 2)
    generator = torch.Generator().manual_seed(batch)
    sizes = (shape, (batch, height, 5, axes), (batch, height, 5, 2 * axes))
    return [torch.randn(size, generator=generator).requires_grad_() for size in sizes]


SHADES = [("wrap", "none"), ("wrap", "made before"), ("wrap", "own"), ("cube", "none"), ("cube", "made before")]


@pytest.mark.parametrize("boundary, stack", SHADES)
def test_compile_forward_and_backward(boundary: str, stack: str) -> None:
    torch._dynamo.reset()
    shade, given = Shade(boundary, stack), shade_arguments(boundary)
    have, want = torch.compile(shade, backend="aot_eager", fullgraph=True, dynamic=False)(*given), shade(*given)
    torch.testing.assert_close(have, want)
    for grad, other in zip(torch.autograd.grad(have.sum(), given), torch.autograd.grad(want.sum(), given)):
        torch.testing.assert_close(grad, other)


@pytest.mark.parametrize("boundary", ["wrap", "cube"])
def test_compile_dynamic_shapes(boundary: str) -> None:
    torch._dynamo.reset()
    shade = Shade(boundary, "none")
    compiled = torch.compile(shade, backend="aot_eager", fullgraph=True, dynamic=True)
    for batch, height in [(2, 3), (4, 5), (7, 2)]:
        given = shade_arguments(boundary, batch, height)
        have, want = compiled(*given), shade(*given)
        torch.testing.assert_close(have, want)
        torch.testing.assert_close(
            torch.autograd.grad(have.sum(), given[0])[0], torch.autograd.grad(want.sum(), given[0])[0]
        )


@pytest.mark.parametrize("boundary", ["wrap", "cube"])
def test_export_with_dynamic_dimensions(boundary: str) -> None:
    shade = Shade(boundary, "none")
    batch, height = torch.export.Dim("batch", min=2, max=64), torch.export.Dim("height", min=2, max=512)
    given = tuple(t.detach() for t in shade_arguments(boundary))
    program = torch.export.export(shade, given, dynamic_shapes=({}, {0: batch, 1: height}, {0: batch, 1: height}))
    assert "diffrast.texture" in program.graph_module.code
    other = tuple(t.detach() for t in shade_arguments(boundary, 5, 7))
    torch.testing.assert_close(program.module()(*other), shade(*other))
