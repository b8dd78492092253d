"""The CUDA kernels compiled for the CPU and run lane by lane, against the CPU operators.

It shows that the kernels' indexing, vector accesses, warp sums and tails are right. It does
not show that they run on a GPU: no real atomics, no real scheduling, no nvcc code. That is
test_cuda.py's, on a machine that has one.
"""

from __future__ import annotations

import ctypes
import platform
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from cases import Case, make_case

HERE = Path(__file__).resolve().parent
CUDA = HERE.parent / "csrc" / "cuda"
DTYPES = {torch.float32: 0, torch.float64: 1, torch.float16: 2, torch.bfloat16: 3}
MARGIN = 64  # elements of NaN before and after each tensor; keeps 16-byte alignment

pytestmark = [
    pytest.mark.skipif(not shutil.which("g++"), reason="no g++"),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the stand-in headers use x86 half conversions"),
]


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[int, ctypes.CDLL]:
    """One library as for sm_50, which adds no doubles by atomics, one as for sm_80, one as for sm_90: float4 atomics."""
    folder = tmp_path_factory.mktemp("cuda_on_host")
    sources = [CUDA / "forward.cu", CUDA / "backward.cu", HERE / "cuda_on_host" / "host.cpp"]
    builds = {}
    for arch in (500, 800, 900):
        # -fsanitize=alignment traps a vector access that is not aligned, as a GPU would.
        flags = ["-std=c++17", "-O1", "-mf16c", "-fPIC", "-shared", "-fsanitize=alignment"]
        flags += ["-fsanitize-undefined-trap-on-error", f"-D__CUDA_ARCH__={arch}", f"-I{HERE / 'cuda_on_host'}"]
        command = ["g++", *flags, "-x", "c++", *map(str, sources), "-o", str(folder / f"{arch}.so")]
        builds[arch] = subprocess.Popen(command)
    assert all(build.wait() == 0 for build in builds.values())
    return {arch: ctypes.CDLL(str(folder / f"{arch}.so")) for arch in builds}


class Guarded:
    """A copy of a tensor between margins of NaN: a read outside spoils the result, a write is seen."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.storage = torch.full((tensor.numel() + 2 * MARGIN,), float("nan"), dtype=tensor.dtype)
        self.tensor = self.storage[MARGIN : MARGIN + tensor.numel()].view(tensor.shape).copy_(tensor)

    def pointer(self) -> int:
        return self.tensor.data_ptr()

    def untouched_outside(self) -> bool:
        inside = self.tensor.numel()
        return bool(self.storage[:MARGIN].isnan().all() and self.storage[MARGIN + inside :].isnan().all())


def run(library: ctypes.CDLL, case: Case, grad_output: torch.Tensor) -> list[torch.Tensor]:
    """forward and the three gradients, as the CUDA operator makes them."""
    value, shapes, starts, loc, weight = case
    dtype = value.dtype
    acc = torch.float64 if dtype is torch.float64 else torch.float32
    batch, rows, heads, channels = value.shape
    queries, levels, points = loc.shape[1], loc.shape[3], loc.shape[4]
    sizes = (ctypes.c_int64 * 7)(batch, rows, heads, channels, queries, levels, points)

    inputs = [Guarded(value), Guarded(loc.to(acc)), Guarded(weight.to(acc))]
    pointers = [inputs[0].pointer(), shapes.data_ptr(), starts.data_ptr(), inputs[1].pointer(), inputs[2].pointer()]
    tensors = (ctypes.c_void_p * 5)(*pointers)

    unset = float("nan")  # what the kernels do not write stays NaN
    out = Guarded(torch.full((batch, queries, heads * channels), unset, dtype=dtype))
    assert library.forward(DTYPES[dtype], sizes, tensors, ctypes.c_void_p(out.pointer())) == 0

    grads = [Guarded(grad_output), Guarded(torch.zeros(value.shape, dtype=acc))]
    grads += [Guarded(torch.full(tensor.shape, unset, dtype=acc)) for tensor in (loc, weight)]
    grad_pointers = (ctypes.c_void_p * 4)(*(grad.pointer() for grad in grads))
    assert library.backward(DTYPES[dtype], sizes, tensors, grad_pointers) == 0

    assert all(tensor.untouched_outside() for tensor in [*inputs, out, *grads])
    like = (value, loc, weight)
    return [out.tensor, *(grad.tensor.to(tensor.dtype) for grad, tensor in zip(grads[1:], like))]


def compare(library: ctypes.CDLL, case: Case) -> None:
    batch, _, heads, channels = case.value.shape
    random = torch.Generator().manual_seed(0)
    shape = (batch, case.sampling_loc.shape[1], heads * channels)
    grad = torch.randn(shape, generator=random, dtype=torch.float64).to(case.value.dtype)
    want = [torch.ops.ms_deform_attn.forward(*case), *torch.ops.ms_deform_attn.backward(*case, grad)]
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}
    for have, expected in zip(run(library, case, grad), want):
        rtol = tolerance[expected.dtype]
        scale = max(1.0, expected.abs().max().item()) if expected.numel() else 1.0
        torch.testing.assert_close(have, expected, rtol=rtol, atol=max(rtol, 1e-5 if rtol > 1e-9 else 0) * scale)


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 8, 16, 30, 32, 64, 71, 128, 256, 264, 1025])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_as_the_cpu(libraries: dict[int, ctypes.CDLL], dtype: torch.dtype, channels: int):
    loc_dtype = torch.float64 if dtype is torch.float64 else torch.float32
    case = make_case(
        batch=2, heads=3, queries=3, points=3, channels=channels, spread=1.6, scale=1.0, dtype=dtype, loc_dtype=loc_dtype
    )
    for library in libraries.values():
        compare(library, case)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_more_items_than_a_block(libraries: dict[int, ctypes.CDLL], dtype: torch.dtype):
    case = make_case(batch=3, heads=5, queries=23, channels=8, dtype=dtype, scale=1.0, spread=1.2)
    case = case._replace(sampling_loc=case.sampling_loc.float(), attn_weight=case.attn_weight.float())
    if dtype is torch.float64:
        case = case._replace(sampling_loc=case.sampling_loc.double(), attn_weight=case.attn_weight.double())
    compare(libraries[900], case)


@pytest.mark.parametrize(
    "empty",
    [{"batch": 0}, {"queries": 0}, {"heads": 0}, {"channels": 0}, {"points": 0}, {"shapes": ()}, {"shapes": ((0, 4),)}],
    ids=str,
)
def test_empty(libraries: dict[int, ctypes.CDLL], empty: dict):
    compare(libraries[900], make_case(**empty, dtype=torch.float32))


def test_level_that_does_not_fit(libraries: dict[int, ctypes.CDLL]):
    case = make_case(dtype=torch.float32)
    case = case._replace(spatial_shapes=torch.tensor([[6, 4], [3000, 2000]]))
    out, grad_value, grad_loc, grad_weight = run(libraries[900], case, torch.ones(1, 2, 4))
    assert out.isnan().all()
    assert torch.isfinite(grad_value).all()
    assert grad_loc[:, :, :, 1].isnan().all() and torch.isfinite(grad_loc[:, :, :, 0]).all()
    assert grad_weight[:, :, :, 1].isnan().all() and torch.isfinite(grad_weight[:, :, :, 0]).all()


def test_locations_not_finite(libraries: dict[int, ctypes.CDLL]):
    case = make_case(channels=4, queries=6, dtype=torch.float32)
    for query, bad in enumerate([float("nan"), float("inf"), -float("inf"), 1e30, -1e30]):
        case.sampling_loc[:, query] = bad
    compare(libraries[900], case)
