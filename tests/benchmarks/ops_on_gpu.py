"""Times the ops of diffrast and ms_deform_attn. Run it: python tests/benchmarks/ops_on_gpu.py.

It needs only torch and the wheels of the extensions. CUDA events time each op, forward and backward, after a warm-up,
and the same function in plain PyTorch from `references/` of the extension. Rows are Markdown: the median, and in
brackets the tenth and the ninetieth percentile, in milliseconds.
"""

import argparse
import importlib
import importlib.machinery
import importlib.util
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))  # at the end, so that an installed wheel precedes the source tree

from builder.gate.system import nvidia  # noqa: E402

TRIANGLES = (1_000, 100_000, 1_000_000)
SIZES = (512, 1024, 2048)
#: The reference of rasterize loops over triangles; it is skipped above this number of triangle-pixels.
LOOP_LIMIT = 1_100 * 512 * 512
CHANNELS = 4
TEXTURE_SIDE = 1024


@dataclass(frozen=True)
class Attention:
    """One shape of multi-scale deformable attention."""

    name: str
    batch: int
    queries: int
    points: int
    levels: tuple[tuple[int, int], ...]
    heads: int = 8
    channels: int = 32


ATTENTION = (
    Attention("kernels-community", 2, 300, 4, ((64, 64), (32, 32), (16, 16), (8, 8))),
    Attention("msda-triton", 4, 10_000, 4, ((64, 64), (32, 32), (16, 16), (8, 8))),
    Attention("DCNv4", 1, 15_200, 8, ((100, 152), (50, 76), (25, 38), (13, 19))),
)
SMALL_ATTENTION = (Attention("small", 1, 20, 2, ((8, 8), (4, 4)), heads=2, channels=4),)


@dataclass(frozen=True)
class Work:
    """What is timed: a forward call, and the inputs that get gradients."""

    call: Callable[[], Tensor]
    leaves: Sequence[Tensor]


@dataclass(frozen=True)
class Row:
    """An op in one shape; `reference` is the reason if there is none."""

    op: str
    shape: str
    ours: Work
    reference: Work | str


class Clock:
    """Times calls on a device for at most `seconds` or `runs` calls, after `warm_up` calls."""

    def __init__(self, device: str, runs: int, warm_up: int, seconds: float) -> None:
        self.device, self.runs, self.warm_up, self.seconds = device, runs, warm_up, seconds

    def times(self, call: Callable[[], object]) -> list[float]:
        """Return the milliseconds of each call, sorted."""
        began = time.perf_counter()
        for _ in range(self.warm_up):
            call()
            self._wait()
            if time.perf_counter() - began > self.seconds:
                break
        found: list[float] = []
        began = time.perf_counter()
        while len(found) < self.runs and (not found or time.perf_counter() - began < self.seconds):
            found.append(self._once(call))
        return sorted(found)

    def _wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def _once(self, call: Callable[[], object]) -> float:
        self._wait()
        if self.device != "cuda":
            began = time.perf_counter()
            call()
            return 1e3 * (time.perf_counter() - began)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end))


def references(extension: str, module: str) -> ModuleType:
    """Load a module from an extension's folder `references`; two extensions have a folder with this name."""
    package = f"references_of_{extension}"
    if package not in sys.modules:
        spec = importlib.machinery.ModuleSpec(package, None, is_package=True)
        spec.submodule_search_locations = [str(ROOT / "extensions" / extension / "references")]
        sys.modules[package] = importlib.util.module_from_spec(spec)
    return importlib.import_module(f"{package}.{module}")


def grid_mesh(triangles: int, device: str) -> tuple[Tensor, Tensor]:
    """Return a wavy surface that covers the screen: pos (1, V, 4) in clip space, tri (T, 3) int32, T >= `triangles`."""
    side = math.ceil(math.sqrt(triangles / 2))
    steps = torch.linspace(-1.1, 1.1, side + 1)
    y, x = torch.meshgrid(steps, steps, indexing="ij")
    w = 1.5 + 0.3 * torch.sin(3 * x) * torch.cos(2 * y)
    pos = torch.stack([x * w, y * w, 0.2 * w * torch.sin(5 * x * y), w], -1).reshape(1, -1, 4)
    corner = torch.arange(side * (side + 1)).reshape(side, side + 1)[:, :-1].reshape(-1)
    below = torch.stack([corner, corner + 1, corner + side + 1], 1)
    above = torch.stack([corner + 1, corner + side + 2, corner + side + 1], 1)
    return pos.to(device), torch.cat([below, above]).to(device, torch.int32)


def diffrast_rows(device: str, sizes: Sequence[int], counts: Sequence[int]) -> Iterator[Row]:
    """Yield a row for each size and number of triangles."""
    for size in sizes:
        for count in counts:
            yield from drawn(device, size, count, texture_side=min(TEXTURE_SIDE, 2 * max(sizes)))


def drawn(device: str, size: int, count: int, texture_side: int) -> Iterator[Row]:
    """Rasterize, interpolate, texture and antialias one image."""
    dr = importlib.import_module("diffrast")
    rasterize = references("diffrast", "rasterize").rasterize
    interpolate = references("diffrast", "interpolate").interpolate
    texture = references("diffrast", "texture").texture
    generator = torch.Generator().manual_seed(0)

    def rand(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator).to(device).requires_grad_()

    pos, tri = grid_mesh(count, device)
    pos.requires_grad_()
    attr, color, tex = rand(1, pos.shape[1], CHANNELS), rand(1, size, size, 3), rand(1, texture_side, texture_side, 3)
    context, edges = dr.RasterizeCudaContext(device=device), dr.antialias_construct_topology_hash(tri)
    with torch.no_grad():
        rast, rast_db = dr.rasterize(context, pos, tri, (size, size))
        uv, uv_da = dr.interpolate(attr[..., :2].contiguous(), rast, tri, rast_db, diff_attrs="all")
    uv.requires_grad_()
    shape, mode = f"{size}², {len(tri)} triangles", "linear-mipmap-linear"
    looped = Work(lambda: rasterize(pos, tri, size, size)[0], [pos])
    yield Row(
        "rasterize",
        shape,
        Work(lambda: dr.rasterize(context, pos, tri, (size, size))[0], [pos]),
        looped if len(tri) * size * size <= LOOP_LIMIT else "a loop over triangles",
    )
    yield Row(
        "interpolate",
        f"{shape}, {CHANNELS} attributes",
        Work(lambda: dr.interpolate(attr, rast, tri)[0], [attr]),
        Work(lambda: interpolate(attr, rast, tri)[0], [attr]),
    )
    yield Row(
        "texture, trilinear",
        f"{shape}, texture {texture_side}²",
        Work(lambda: dr.texture(tex, uv, uv_da, filter_mode=mode), [tex, uv]),
        Work(lambda: texture(tex, uv, uv_da, filter_mode=mode), [tex, uv]),
    )
    yield Row(
        "antialias",
        shape,
        Work(lambda: dr.antialias(color, rast, pos, tri, edges), [color, pos]),
        "a loop over pixels",
    )


def attention_rows(device: str, shapes: Sequence[Attention], dtypes: Sequence[torch.dtype]) -> Iterator[Row]:
    """Yield a row for each shape and dtype."""
    for shape in shapes:
        for dtype in dtypes:
            yield attended(device, shape, dtype)


def attended(device: str, shape: Attention, dtype: torch.dtype) -> Row:
    """Multi-scale deformable attention; the plain version calculates in the dtype of its inputs, as in users' code."""
    ours = importlib.import_module("ms_deform_attn").ms_deform_attn
    plain = references("ms_deform_attn", "deformable_attention").forward
    generator = torch.Generator().manual_seed(0)

    def rand(*size: int) -> Tensor:
        return torch.rand(size, generator=generator).to(device, dtype).requires_grad_()

    rows = [height * width for height, width in shape.levels]
    points = (shape.batch, shape.queries, shape.heads, len(rows), shape.points)
    value, loc, weight = rand(shape.batch, sum(rows), shape.heads, shape.channels), rand(*points, 2), rand(*points)
    levels = torch.tensor(shape.levels, device=device)
    starts = torch.tensor([sum(rows[:i]) for i in range(len(rows))], device=device)
    return Row(
        f"ms_deform_attn, {dtype}".replace("torch.", ""),
        f"{shape.name}: N={shape.batch}, Lq={shape.queries}, M={shape.heads}, D={shape.channels}, "
        f"P={shape.points}, L={len(rows)}",
        Work(lambda: ours(value, levels, starts, loc, weight), [value, loc, weight]),
        Work(lambda: plain(value, levels, starts, loc, weight, precision=dtype), [value, loc, weight]),
    )


def measured(clock: Clock, work: Work) -> tuple[list[float], list[float]]:
    """Return sorted milliseconds of forward calls, and of backward calls."""
    forward = clock.times(work.call)
    out = work.call()
    grad = torch.ones_like(out)
    backward = clock.times(lambda: torch.autograd.grad(out, work.leaves, grad, retain_graph=True, allow_unused=True))
    return forward, backward


def summary(times: Sequence[float]) -> str:
    """Return the median, and the tenth and ninetieth percentile."""
    low, high = times[len(times) // 10], times[-1 - len(times) // 10]
    return f"{statistics.median(times):.3f} ({low:.3f} - {high:.3f})"


def line(row: Row, clock: Clock) -> str:
    """Measure and return one row of the table."""
    ours = measured(clock, row.ours)
    cells = [row.op, row.shape, *map(summary, ours)]
    if isinstance(row.reference, str):
        return "| " + " | ".join([*cells, f"not run: {row.reference}", "", "", ""]) + " |"
    plain = measured(clock, row.reference)
    for mine, theirs in zip(ours, plain, strict=True):
        cells += [summary(theirs), f"{statistics.median(theirs) / statistics.median(mine):.1f}x"]
    return "| " + " | ".join(cells) + " |"


def where(device: str) -> list[str]:
    """Return device, driver, clocks (MHz), torch and date as rows."""
    facts = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "torch": torch.__version__, "device": "CPU"}
    if device == "cuda":
        rows = nvidia.smi(("driver_version", "clocks.sm", "clocks.max.sm", "clocks.mem", "power.limit"))
        facts = {**facts, "CUDA": str(torch.version.cuda), "device": torch.cuda.get_device_name(0), **rows[0]}
    return ["| | |", "| --- | --- |", *(f"| {key} | {value} |" for key, value in facts.items())]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--only", choices=["diffrast", "ms_deform_attn"], help="one of the extensions")
    parser.add_argument("--small", action="store_true", help="tiny shapes and few runs, to test this program")
    parser.add_argument("--runs", type=int, default=100, help="maximum number of calls to time")
    parser.add_argument("--seconds", type=float, default=2.0, help="maximum time for each measurement, seconds")
    options = parser.parse_args()
    device, small = options.device, options.small
    if device == "cuda" and not torch.cuda.is_available():
        sys.exit("torch finds no GPU on this machine; --device cpu --small tests this program without one")
    clock = Clock(device, 3 if small else options.runs, 1 if small else 10, options.seconds)
    dtypes = (torch.float32,) if device == "cpu" else (torch.float32, torch.float16, torch.bfloat16)
    groups: dict[str, Callable[[], Iterator[Row]]] = {
        "diffrast": lambda: diffrast_rows(device, (16,) if small else SIZES, (20,) if small else TRIANGLES),
        "ms_deform_attn": lambda: attention_rows(device, SMALL_ATTENTION if small else ATTENTION, dtypes),
    }
    print("\n".join(where(device)))
    print("\n| op | shape | forward, ms | backward, ms | PyTorch forward | ratio | PyTorch backward | ratio |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for name, rows in groups.items():
        if options.only not in {None, name}:
            continue
        if importlib.util.find_spec(name) is None:
            print(f"| {name} | not installed | | | | | | |")
            continue
        for row in rows():
            print(line(row, clock), flush=True)
    if device == "cuda":  # the clocks of the warm GPU, at which the figures were measured
        print("\n" + "\n".join(where(device)))


if __name__ == "__main__":
    main()
