"""The CUDA kernels compiled for the CPU and run lane by lane, against the CPU operators.

It shows that the kernels' indexing, shuffles, ballots and sums are right. It does not show that they run on a GPU: no
real atomics, no real scheduling, no nvcc code. That is test_rasterize_cuda.py's, on a machine that has one.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from torch import Tensor

HERE = Path(__file__).resolve().parent
OP = torch.ops.diffrast.rasterize
BACKWARD = torch.ops.diffrast.rasterize_backward

pytestmark = pytest.mark.skipif(not shutil.which("g++"), reason="no g++")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    built = tmp_path_factory.mktemp("cuda_on_host") / "rasterize.so"
    sources = [HERE.parent / "csrc" / "cuda" / "rasterize.cu", HERE / "cuda_on_host" / "rasterize.cpp"]
    # The macros make the device's branches of backend.h the ones that run.
    flags = ["-std=c++17", "-O1", "-ffp-contract=off", "-fPIC", "-shared", "-D__CUDACC__", "-D__CUDA_ARCH__=900"]
    command = ["g++", *flags, f"-I{HERE / 'cuda_on_host'}", "-x", "c++", *map(str, sources), "-o", str(built)]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(built))


def call(function: ctypes._NamedFuncPointer, sizes: list[int], tensors: list[Tensor | None]) -> None:
    pointers = [tensor.data_ptr() if tensor is not None else None for tensor in tensors]
    status = function((ctypes.c_int64 * len(sizes))(*sizes), (ctypes.c_void_p * len(pointers))(*pointers))
    assert status == 0, "see stderr"


def forward(
    library: ctypes.CDLL,
    pos: Tensor,
    tri: Tensor,
    size: tuple[int, int],
    ranges: Tensor | None = None,
    peel: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    images = pos.shape[0] if ranges is None else len(ranges)
    slots = images * len(tri)  # with ranges: as if they lay on the device
    rast, rast_db = (torch.full((images, *size, 4), float("nan")) for _ in range(2))
    first_slot, first_pair = torch.full((images + 1,), -7), torch.full((slots + 1,), -7)
    nearest = torch.full((images * size[0] * size[1],), -7)
    sizes = [images, pos.shape[-2], len(tri), *size, slots, pos.shape[1] * 4 if ranges is None else 0]
    tensors = [pos, tri, ranges, peel, first_slot, first_pair, nearest, rast, rast_db]
    call(library.rasterize, sizes, tensors)
    return rast, rast_db


def scene(name: str) -> tuple[Tensor, Tensor]:
    """Small triangles, which need no tiles; large ones; clipped ones of up to nine corners."""
    random = torch.Generator().manual_seed(len(name))
    count = {"small": 200, "large": 9, "clipped": 60, "mixed": 60}[name]
    pos = torch.randn(2, count, 3, 4, generator=random)
    if name != "clipped":
        pos[..., 3] = 1 + torch.rand(2, count, 3, generator=random)
        pos[..., 2] *= 0.3
    if name in ("small", "mixed"):
        spread = 0.1 if name == "small" else torch.rand(2, count, 1, 1, generator=random) ** 4 * 2
        pos = pos[..., :1, :] + spread * (pos - pos[..., :1, :])
    if name == "clipped":
        pos[:, ::2, :, :2] *= 1e3 ** torch.arange(60)[::2, None, None].remainder(4)
    return pos.reshape(2, -1, 4).contiguous(), torch.arange(3 * count, dtype=torch.int32).view(-1, 3)


def same_bits(have: tuple[Tensor, ...], want: tuple[Tensor, ...]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(have, want, strict=True))


@pytest.mark.parametrize("size", [(40, 53), (3, 129), (8, 8)], ids=str)
@pytest.mark.parametrize("name", ["small", "large", "clipped", "mixed"])
def test_forward(library: ctypes.CDLL, name: str, size: tuple[int, int]):
    """The same bits: CPU and GPU draw the same pixels, to the last digit of u, v and z/w."""
    pos, tri = scene(name)
    want = OP(pos, tri, *size, None, None, True)
    assert len(want[0][..., 3].unique()) > 4
    assert same_bits(forward(library, pos, tri, size), want)


def test_ranges(library: ctypes.CDLL):
    pos, tri = scene("mixed")
    ranges = torch.tensor([[0, 60], [7, 20], [3, 0], [59, 1], [0, 0]], dtype=torch.int32)
    want = OP(pos[0], tri, 30, 30, ranges, None, True)
    assert same_bits(forward(library, pos[0], tri, (30, 30), ranges), want)


def test_ranges_outside_of_tri_are_cut(library: ctypes.CDLL):
    """On the device nobody reads them before they are used."""
    pos, tri = scene("mixed")
    wild = torch.tensor([[-5, 60], [50, 2**31 - 1], [2**31 - 1, 9], [3, -4]], dtype=torch.int32)
    tame = torch.tensor([[0, 60], [50, 10], [60, 0], [3, 0]], dtype=torch.int32)
    want = OP(pos[0], tri, 30, 30, tame, None, True)
    assert same_bits(forward(library, pos[0], tri, (30, 30), wild), want)


def test_layers(library: ctypes.CDLL):
    pos, tri = scene("mixed")
    front = None
    for _ in range(4):
        want = OP(pos, tri, 24, 24, None, front, True)
        assert same_bits(forward(library, pos, tri, (24, 24), peel=front), want)
        front = want[0]
    assert (front[..., 3] > 0).any()


@pytest.mark.parametrize("db", [False, True], ids=["", "db"])
@pytest.mark.parametrize("size", [(40, 53), (3, 129)], ids=str)
@pytest.mark.parametrize("name", ["small", "large", "clipped", "mixed"])
def test_backward(library: ctypes.CDLL, name: str, size: tuple[int, int], db: bool):
    """Few and many triangles in a warp: sums of a group, and additions one by one."""
    pos, tri = scene(name)
    rast, _ = OP(pos, tri, *size, None, None, True)
    random = torch.Generator().manual_seed(0)
    of_rast, of_db = (torch.randn(rast.shape, generator=random) for _ in range(2))
    want = BACKWARD(pos, tri, rast, of_rast, of_db if db else None)
    have = torch.zeros_like(pos)
    sizes = [2, pos.shape[1], len(tri), *size, pos.shape[1] * 4]
    call(library.rasterize_backward, sizes, [pos, tri, rast, of_rast, of_db if db else None, have])
    scale = want.abs().amax().item()
    torch.testing.assert_close(have, want, rtol=1e-4, atol=1e-6 * scale)
