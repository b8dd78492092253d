"""What only a GPU can show. Skipped, with the reason, where there is none."""

from __future__ import annotations

import pytest
import torch
from cases import TORCH, Case, floating, in_double, make_case, reference

import ms_deform_attn
from ms_deform_attn import ms_deform_attn as op

pytestmark = pytest.mark.gpu


def to(case: Case, device: str) -> Case:
    return Case(*(tensor.detach().to(device).requires_grad_(tensor.requires_grad) for tensor in case))


def run(case: Case, grad: torch.Tensor) -> list[torch.Tensor]:
    out = op(*case)
    return [out, *torch.autograd.grad(out, floating(case), grad.to(out.device, out.dtype))]


def test_the_wheel_has_cuda_kernels():
    assert ms_deform_attn.HAS_CUDA


# 16-byte vectors and single channels; one lane to a whole warp and several rounds of it.
@pytest.mark.parametrize("channels", [1, 2, 4, 8, 30, 32, 64, 71, 128, 256, 1024, 1025, 2048, 3096])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_cuda_is_cpu(channels: int, dtype: torch.dtype):
    case = make_case(
        batch=3, heads=3, queries=7, points=3, channels=channels, spread=1.6, scale=1.0, dtype=dtype,
        loc_dtype=torch.float64 if dtype is torch.float64 else torch.float32, requires_grad=True,
    )
    grad = torch.randn(3, 7, 3 * channels, generator=torch.Generator().manual_seed(0)).to(dtype)
    tolerance = {torch.float64: 1e-11, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}[dtype]
    for have, want in zip(run(to(case, "cuda"), grad), run(case, grad)):
        scale = max(1.0, want.abs().max().item()) if want.numel() else 1.0
        torch.testing.assert_close(have.cpu(), want, rtol=tolerance, atol=tolerance * scale)


@pytest.mark.parametrize("channels", [30, 32, 64, 71, 1025])
def test_gradcheck(channels: int):
    case = make_case(channels=channels, device="cuda", requires_grad=True, spread=1.4)
    assert torch.autograd.gradcheck(op, tuple(case), fast_mode=True, nondet_tol=1e-12)


def test_unaligned_tensors():
    """A view that starts one element into its storage cannot be read in 16-byte pieces."""
    case = make_case(channels=8, dtype=torch.float16, loc_dtype=torch.float32, device="cuda")
    storage = torch.empty(case.value.numel() + 1, dtype=torch.float16, device="cuda")
    shifted = storage[1:].view(case.value.shape).copy_(case.value)
    torch.testing.assert_close(op(shifted, *case[1:]), op(*case), rtol=0, atol=0)


@pytest.mark.parametrize("empty", [{"batch": 0}, {"queries": 0}, {"channels": 0}, {"points": 0}, {"shapes": ()}], ids=str)
def test_empty(empty: dict):
    case = make_case(**empty, device="cuda", requires_grad=True)
    out = op(*case)
    assert (out == 0).all()
    for grad in torch.autograd.grad(out, floating(case), torch.ones_like(out)):
        assert (grad == 0).all()


def test_half_gradients_are_summed_in_f32():
    case = make_case(shapes=((1, 1),), heads=1, channels=8, points=1, queries=4096, dtype=torch.float16, device="cuda")
    case = case._replace(
        value=case.value.requires_grad_(),
        sampling_loc=torch.full_like(case.sampling_loc, 0.5),
        attn_weight=torch.ones_like(case.attn_weight),
    )
    op(*case).sum().backward()
    assert case.value.grad.float().unique().tolist() == [4096.0]


def test_level_that_does_not_fit_is_nan_and_harmless():
    case = make_case(device="cuda", dtype=torch.float32, requires_grad=True)
    case = case._replace(spatial_shapes=torch.tensor([[6, 4], [3000, 2000]], device="cuda"))
    out, *grads = run(case, torch.ones(1, 2, 4))
    assert out.isnan().all()
    assert grads[1][:, :, :, 1].isnan().all() and torch.isfinite(grads[1][:, :, :, 0]).all()
    torch.cuda.synchronize()


@pytest.mark.parametrize("on_cpu", range(1, 5), ids=Case._fields[1:])
def test_mixed_devices_are_refused(on_cpu: int):
    case = list(make_case(device="cuda"))
    case[on_cpu] = case[on_cpu].cpu()
    with pytest.raises(RuntimeError, match=f"{Case._fields[on_cpu]} must be on the same device|same device"):
        op(*case)


def test_device_guard():
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    case = make_case(channels=32, dtype=torch.float32, requires_grad=True)
    with torch.cuda.device(0):
        have = run(to(case, "cuda:1"), torch.ones(1, 2, 64))
        assert torch.cuda.current_device() == 0
    assert all(tensor.device == torch.device("cuda:1") for tensor in have)
    for tensor, want in zip(have, run(case, torch.ones(1, 2, 64))):
        torch.testing.assert_close(tensor.cpu(), want, rtol=1e-5, atol=1e-6)


def test_runs_on_the_current_stream():
    """The input is filled on a side stream behind a long wait: a launch elsewhere would read the old one."""
    case = make_case(channels=32, queries=64, dtype=torch.float32, device="cuda")
    want = op(*case)
    value = torch.zeros_like(case.value)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        value.copy_(case.value)
        have = op(value, *case[1:])
    stream.synchronize()
    torch.testing.assert_close(have, want, rtol=0, atol=0)


def test_cuda_graph():
    """Capture fails if anything waits, or runs on another stream."""
    case = make_case(channels=32, queries=64, dtype=torch.float32, device="cuda")
    grad = torch.ones(1, 64, 64, device="cuda")
    for _ in range(2):
        torch.ops.ms_deform_attn.backward(*case, grad)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = op(*case)
        grads = torch.ops.ms_deform_attn.backward(*case, grad)
    with torch.no_grad():
        case.value.copy_(torch.rand_like(case.value))
    graph.replay()
    torch.testing.assert_close(out, op(*case), rtol=0, atol=0)
    for have, want in zip(grads, torch.ops.ms_deform_attn.backward(*case, grad)):
        torch.testing.assert_close(have, want, rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(TORCH < (2, 4), reason="tested from torch 2.4 on")
@pytest.mark.parametrize("size", [1000, 5000, 10000])
def test_compile_with_cuda_graphs(size: int):
    """The shape of PyTorch's own stream test (pytorch#157363): a layer before the operator."""
    linear = torch.nn.Linear(8, 8).cuda()
    case = make_case(channels=8, heads=1, queries=size, dtype=torch.float32, device="cuda")

    def model(value, *rest):
        return op(linear(value), *rest)

    compiled = torch.compile(model, mode="reduce-overhead", fullgraph=True)
    with torch.no_grad():
        want = model(*case)
        for _ in range(3):
            have = compiled(*case)
        torch.testing.assert_close(have, want, rtol=1e-4, atol=1e-5)


def test_deterministic_mode_is_respected():
    case = make_case(device="cuda", requires_grad=True)
    torch.use_deterministic_algorithms(True)
    try:
        out = op(*case)
        with pytest.raises(RuntimeError, match="does not have a deterministic implementation"):
            out.sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)


def test_more_than_two_to_the_31_elements():
    """Offsets beyond 32 bits: the last rows of a value of 2.2e9 half elements."""
    free, _ = torch.cuda.mem_get_info()
    batch, rows, heads, channels = 17, 2**16, 32, 64
    if free < 6 * batch * rows * heads * channels // 2:
        pytest.skip("needs about 7 GB of free GPU memory")
    value = torch.zeros(batch, rows, heads, channels, dtype=torch.float16, device="cuda")
    value[-1] = 1
    loc = torch.full((batch, 1, heads, 1, 1, 2), 0.5, device="cuda")
    weight = torch.ones(batch, 1, heads, 1, 1, device="cuda")
    shapes, starts = torch.tensor([[256, 256]], device="cuda"), torch.tensor([0], device="cuda")
    out = op(value, shapes, starts, loc, weight)
    assert (out[-1] == 1).all() and (out[:-1] == 0).all()


def test_halves_against_double():
    case = make_case(batch=2, heads=8, channels=32, queries=100, points=4, scale=1.0, dtype=torch.float16,
                     loc_dtype=torch.float32, shapes=((32, 32), (16, 16), (8, 8), (4, 4)))
    want = reference(in_double(case))
    torch.testing.assert_close(op(*to(case, "cuda")).cpu().double(), want, rtol=2.0**-11 + 1e-5, atol=1e-5)
