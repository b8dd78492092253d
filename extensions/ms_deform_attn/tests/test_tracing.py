"""Registrations, fake tensors, export and compile."""

from __future__ import annotations

import shutil

import pytest
import torch
from cases import TORCH, Case, floating, make_case
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

import ms_deform_attn
from ms_deform_attn import MSDeformAttn
from ms_deform_attn import ms_deform_attn as op

FORWARD = torch.ops.ms_deform_attn.forward
BACKWARD = torch.ops.ms_deform_attn.backward
# torch <= 2.12, torch >= 2.13, and our own words.
MIXED_DEVICES = "Unhandled FakeTensor Device Propagation|all tensors to be on the same device|must be on the same device"

needs_library_api = pytest.mark.skipif(TORCH < (2, 4), reason="torch.library.opcheck came with torch 2.4")
needs_export = pytest.mark.skipif(TORCH < (2, 4), reason="torch.export of custom operators is tested from torch 2.4 on")
needs_compile = pytest.mark.skipif(TORCH < (2, 2), reason="torch.compile of custom operators is tested from torch 2.2 on")


@pytest.mark.parametrize("name", ["forward", "backward"])
@pytest.mark.parametrize("key", ["CPU", "CUDA"])
def test_kernels_are_registered(name: str, key: str):
    if key == "CUDA" and not ms_deform_attn.HAS_CUDA:
        pytest.skip("CPU-only build or CPU-only torch")
    assert torch._C._dispatch_has_kernel_for_dispatch_key(f"ms_deform_attn::{name}", key)


@needs_library_api
@pytest.mark.parametrize(
    "sample",
    [
        {"dtype": torch.float32, "requires_grad": True},
        {"dtype": torch.float32, "requires_grad": False},
        {"dtype": torch.bfloat16, "loc_dtype": torch.float32, "requires_grad": True},
        {"batch": 3, "channels": 71, "queries": 5, "requires_grad": True},
        {"queries": 0, "dtype": torch.float32},
    ],
    ids=["f32-grad", "f32", "bf16-mixed", "d71", "no-queries"],
)
def test_opcheck_forward(sample: dict):
    torch.library.opcheck(FORWARD, make_case(**sample))


@needs_library_api
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_opcheck_backward(dtype: torch.dtype):
    case = make_case(dtype=dtype, loc_dtype=torch.float32, channels=8)
    torch.library.opcheck(BACKWARD, (*case, torch.rand(1, 2, 16).to(dtype)))


@pytest.mark.parametrize("crooked", [False, True], ids=["contiguous", "transposed"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_fake_looks_like_the_real_one(dtype: torch.dtype, crooked: bool):
    """Shape, stride and dtype; opcheck before torch 2.15 does not compare strides on the CPU."""
    case = make_case(dtype=dtype, loc_dtype=torch.float32, channels=3, heads=4, batch=2)
    if crooked:
        case = Case(*(tensor.transpose(0, -1).contiguous().transpose(0, -1) for tensor in case))
    grad = torch.rand(2, 2, 12).to(dtype)
    real = [FORWARD(*case), *BACKWARD(*case, grad)]
    mode = FakeTensorMode()
    fake_case = [mode.from_tensor(tensor) for tensor in case]
    with mode:
        fake = [FORWARD(*fake_case), *BACKWARD(*fake_case, mode.from_tensor(grad))]
    for have, want in zip(fake, real):
        assert (have.shape, have.stride(), have.dtype, have.device) == (want.shape, want.stride(), want.dtype, want.device)


def fake_on_cuda(case: tuple[torch.Tensor, ...], on_cpu: int = -1) -> list[FakeTensor]:
    """Fake CUDA tensors on a machine without a GPU, one of them on the CPU."""
    mode = FakeTensorMode()
    devices = ["cpu" if index == on_cpu else "cuda:0" for index in range(len(case))]
    return [FakeTensor(mode, tensor.to("meta"), torch.device(device)) for tensor, device in zip(case, devices)]


BACKWARD_CASE = (*make_case(), torch.rand(1, 2, 4).double())


def test_fake_cuda():
    fakes = fake_on_cuda(BACKWARD_CASE)
    assert FORWARD(*fakes[:5]).device == torch.device("cuda:0")
    assert [grad.device for grad in BACKWARD(*fakes)] == [torch.device("cuda:0")] * 3


@pytest.mark.parametrize("on_cpu", range(5), ids=Case._fields)
def test_fake_refuses_mixed_devices(on_cpu: int):
    with pytest.raises(RuntimeError, match=MIXED_DEVICES):
        FORWARD(*fake_on_cuda(make_case(), on_cpu))


@pytest.mark.parametrize("on_cpu", range(6), ids=[*Case._fields, "grad_output"])
def test_fake_backward_refuses_mixed_devices(on_cpu: int):
    with pytest.raises(RuntimeError, match=MIXED_DEVICES):
        BACKWARD(*fake_on_cuda(BACKWARD_CASE, on_cpu))


class Attend(torch.nn.Module):
    def __init__(self, levels: "list[tuple[int, int]] | None" = None) -> None:
        super().__init__()
        self.levels = levels

    def forward(self, value, spatial_shapes, level_start_index, sampling_loc, attn_weight):
        return op(
            value, spatial_shapes, level_start_index, sampling_loc, attn_weight, 64, self.levels
        ).relu()


@needs_export
def test_export_with_dynamic_dimensions():
    case = make_case(batch=2, queries=3, channels=4, dtype=torch.float32)
    batch, queries = torch.export.Dim("batch", min=2, max=64), torch.export.Dim("queries", min=2, max=512)
    dims = (
        {0: batch, 1: torch.export.Dim("rows", min=2, max=4096)},
        {},
        {},
        {0: batch, 1: queries},
        {0: batch, 1: queries},
    )
    program = torch.export.export(Attend(), tuple(case), dynamic_shapes=dims)
    assert "ms_deform_attn.forward" in program.graph_module.code
    other = make_case(batch=5, queries=7, channels=4, dtype=torch.float32, shapes=((5, 5), (2, 3)))
    torch.testing.assert_close(program.module()(*other), op(*other).relu())


@needs_export
def test_export_with_the_list():
    case = make_case(dtype=torch.float32, queries=3)
    queries = torch.export.Dim("queries", min=2, max=512)
    dims = ({}, {}, {}, {1: queries}, {1: queries})
    program = torch.export.export(Attend([(6, 4), (3, 2)]), tuple(case), dynamic_shapes=dims)
    other = make_case(dtype=torch.float32, queries=9)
    torch.testing.assert_close(program.module()(*other), op(*other).relu())


BACKENDS = ["aot_eager", pytest.param("inductor", marks=pytest.mark.skipif(not shutil.which("g++"), reason="no g++"))]


@needs_compile
@pytest.mark.parametrize("backend", BACKENDS)
def test_compile_forward_and_backward(backend: str):
    torch._dynamo.reset()
    compiled = torch.compile(Attend(), backend=backend, fullgraph=True, dynamic=False)
    case = make_case(channels=8, queries=5, dtype=torch.float32, scale=1.0, requires_grad=True)
    have, want = compiled(*case), Attend()(*case)
    torch.testing.assert_close(have, want)
    expected = torch.autograd.grad(want.sum(), floating(case))
    for grad, other in zip(torch.autograd.grad(have.sum(), floating(case)), expected):
        torch.testing.assert_close(grad, other)


@needs_compile
def test_compile_dynamic_shapes():
    torch._dynamo.reset()
    compiled = torch.compile(Attend(), backend="aot_eager", fullgraph=True, dynamic=True)
    for batch, queries in [(2, 3), (4, 5), (7, 2)]:
        case = make_case(batch=batch, queries=queries, dtype=torch.float32, requires_grad=True)
        torch.testing.assert_close(compiled(*case), Attend()(*case))


@needs_compile
def test_compile_with_the_list():
    torch._dynamo.reset()
    compiled = torch.compile(Attend([(6, 4), (3, 2)]), backend="aot_eager", fullgraph=True)
    case = make_case(dtype=torch.float32)
    torch.testing.assert_close(compiled(*case), Attend()(*case))


@needs_compile
def test_compile_module():
    torch._dynamo.reset()
    layer = MSDeformAttn(d_model=32, n_levels=2, n_heads=4, n_points=2)
    query, reference, memory = torch.rand(2, 5, 32), torch.rand(2, 5, 2, 2), torch.rand(2, 30, 32)
    shapes, starts = torch.tensor([[6, 4], [3, 2]]), torch.tensor([0, 24])
    mask = torch.rand(2, 30) > 0.8
    arguments = (query, reference, memory, shapes, starts, mask)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(*arguments), layer(*arguments))
