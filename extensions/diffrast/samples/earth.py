"""Fit the texture of a planet to small images of it, with mipmaps and without.

The planet stands in changing distances, so in most images one pixel sees many texels. With mipmaps its gradient goes
to all of them; without, to the two by two nearest, as if the others were not there. The images to fit are rendered
finely from a planet made of noise, then averaged down.

    python earth.py --out images
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from png import enlarge, grid, write_png
from torch import Tensor
from torch.nn import functional
from views import clip_space, perspective, rotations, turned

from diffrast import RasterizeCudaContext, interpolate, rasterize, texture, texture_construct_mip
from diffrast.texturing import MipStack

HEIGHT, WIDTH = 128, 256  # texels
MIP_LEVELS = 6
LOWEST, HIGHEST = 0.5, 7.0  # how far above the ground the eye is, in radii


def directions(height: int, width: int) -> Tensor:
    """(height, width, 3): where the texels of a map lie on the unit sphere; row 0 is the south."""
    latitude = ((torch.arange(height) + 0.5) / height - 0.5) * math.pi
    longitude = (torch.arange(width) + 0.5) / width * 2 * math.pi
    b, a = torch.meshgrid(latitude, longitude, indexing="ij")
    return torch.stack([b.cos() * a.sin(), b.sin(), b.cos() * a.cos()], dim=-1)


def noise(points: Tensor, octaves: Sequence[int], generator: torch.Generator) -> Tensor:
    """Sum of random lattices in space, each as strong as its cells are wide; zero on average. Takes (..., 3)."""
    total = points.new_zeros(points.shape[:-1])
    for cells in octaves:
        lattice = torch.randn(1, 1, cells, cells, cells, generator=generator)
        samples = functional.grid_sample(lattice, points.reshape(1, 1, 1, -1, 3), align_corners=True)
        total = total + samples.reshape(total.shape) * (octaves[0] / cells) ** 0.9
    return total


def ramp(value: Tensor, stops: Sequence[tuple[float, tuple[float, float, float]]]) -> Tensor:
    """Colours between the stops, linear in value."""
    color = torch.tensor(stops[0][1]).expand(*value.shape, 3)
    for (begin, _), (end, after) in zip(stops, stops[1:]):
        share = ((value - begin) / (end - begin)).clamp(0, 1)[..., None]
        color = color + share * (torch.tensor(after) - color)
    return color


def planet(height: int = HEIGHT, width: int = WIDTH, seed: int = 4) -> Tensor:
    """(height, width, 3): oceans, land, mountains, ice."""
    generator = torch.Generator().manual_seed(seed)
    points = directions(height, width)
    ground = noise(points, (5, 9, 17, 33, 65, 129), generator) - 0.15
    damp = noise(points, (4, 9, 21, 45), generator)
    sea = ramp(ground, [(-1.6, (0.02, 0.07, 0.20)), (-0.4, (0.05, 0.22, 0.42)), (0.0, (0.22, 0.52, 0.62))])
    dry = ramp(ground, [(0.0, (0.80, 0.72, 0.49)), (0.7, (0.70, 0.54, 0.33)), (1.4, (0.42, 0.34, 0.29))])
    green = ramp(ground, [(0.0, (0.42, 0.58, 0.27)), (0.6, (0.16, 0.38, 0.18)), (1.4, (0.37, 0.36, 0.31))])
    land = dry + (damp * 1.5 + 0.4).sigmoid()[..., None] * (green - dry)
    color = torch.where(ground[..., None] > 0, land, sea)
    cold = (points[..., 1].abs() - 0.86 + 0.07 * damp + 0.10 * ground) * 14
    color = color + cold.sigmoid()[..., None] * (torch.tensor([0.94, 0.96, 0.98]) - color)
    return color + ((ground - 1.25) * 8).sigmoid()[..., None] * (0.93 - color)  # snow on mountains


def sphere(rows: int = 24, columns: int = 48) -> tuple[Tensor, Tensor, Tensor]:
    """Points (V, 3), texture coordinates (V, 2), triangles (T, 3); the seam's vertices are there twice."""
    t, s = torch.meshgrid(torch.linspace(0, 1, rows + 1), torch.linspace(0, 1, columns + 1), indexing="ij")
    b, a = (t - 0.5) * math.pi, s * 2 * math.pi
    points = torch.stack([b.cos() * a.sin(), b.sin(), b.cos() * a.cos()], dim=-1).reshape(-1, 3)
    corner = torch.arange((rows + 1) * (columns + 1)).reshape(rows + 1, columns + 1)
    low, right, high, across = corner[:-1, :-1], corner[:-1, 1:], corner[1:, :-1], corner[1:, 1:]
    tri = torch.cat([torch.stack([low, right, across], -1), torch.stack([low, across, high], -1)]).reshape(-1, 3)
    return points, torch.stack([s, t], dim=-1).reshape(-1, 2), tri.int()


class Renderer:
    """Draws a textured planet before black; differentiable in the texture."""

    def __init__(self, device: torch.device) -> None:
        self.context = RasterizeCudaContext(device)
        self.points, self.uv, self.tri = (part.to(device) for part in sphere())
        self.lens = perspective(1.7, 0.1, 20.0).to(device)

    def __call__(
        self, tex: Tensor, turn: Tensor, distance: Tensor, size: int, *, mipmaps: bool, mip: MipStack | None = None
    ) -> Tensor:
        """(N, size, size, 3) of a texture (H, W, 3); `mip` where its mip levels are known already."""
        pos = clip_space(self.points, turn, distance, self.lens)
        rast, rast_db = rasterize(self.context, pos, self.tri, (size, size))
        if mipmaps:
            uv, uv_da = interpolate(self.uv, rast, self.tri, rast_db, diff_attrs="all")
            image = texture(tex[None], uv, uv_da, mip=mip, max_mip_level=MIP_LEVELS)
        else:
            uv, _ = interpolate(self.uv, rast, self.tri)
            image = texture(tex[None], uv)
        return image * (rast[..., 3:] > 0)


def psnr(have: Tensor, want: Tensor) -> float:
    """Peak signal to noise ratio of a texture in dB; texels count by the area they cover on the sphere."""
    height = want.shape[0]
    area = (((torch.arange(height) + 0.5) / height - 0.5) * math.pi).cos().to(want)[:, None, None]
    error = ((have - want).square() * area).sum() / area.expand_as(want).sum()
    return -10 * math.log10(error.item())


def fit(
    target: Tensor, *, mipmaps: bool, steps: int, size: int = 32, views: int = 4, finer: int = 3, seed: int = 0
) -> Tensor:
    """The texture found from grey, (H, W, 3) on the target's device, after `steps` steps of `views` images each."""
    generator = torch.Generator().manual_seed(seed)
    draw = Renderer(target.device)
    mip = texture_construct_mip(target[None], MIP_LEVELS)
    tex = torch.full_like(target, 0.4, requires_grad=True)
    optimizer = torch.optim.Adam([tex], lr=0.02, betas=(0.9, 0.99))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.1 ** (step / steps))
    for _ in range(steps):
        turn = rotations(views, generator).to(target.device)
        # Even in the logarithm: from half a texel to ten texels a pixel.
        share = torch.rand(views, generator=generator).to(target.device)
        distance = 1 + LOWEST * (HIGHEST / LOWEST) ** share
        with torch.no_grad():
            fine = draw(target, turn, distance, size * finer, mipmaps=True, mip=mip)
            wanted = fine.unflatten(1, (size, finer)).unflatten(3, (size, finer)).mean((2, 4))
        loss = (draw(tex, turn, distance, size, mipmaps=mipmaps) - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return tex.detach()


def globes(textures: Sequence[Tensor], side: int = 176) -> list[Tensor]:
    """Each texture on the planet, close up and smooth."""
    draw = Renderer(textures[0].device)
    turn = turned(0.30, -2.2).to(textures[0])
    distance = turn.new_tensor([2.1])
    fine = [draw(tex, turn, distance, 2 * side, mipmaps=True)[0] for tex in textures]
    return [image.unflatten(0, (side, 2)).unflatten(2, (side, 2)).mean((1, 3)) for image in fine]


def main(argv: Sequence[str] | None = None) -> None:
    """Fit both ways, say how well, write earth.png (globes) and earth-maps.png (parts of the textures)."""
    parser = argparse.ArgumentParser(description="Fit a planet's texture, with mipmaps and without.")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("images"), help="folder for the two pictures")
    parser.add_argument("--steps", type=int, default=400)
    options = parser.parse_args(argv)
    torch.set_num_threads(1)  # images this small are drawn fastest by one
    target = planet().to(options.device)
    found = {}
    for mipmaps in (True, False):
        begin = time.perf_counter()
        found[mipmaps] = fit(target, mipmaps=mipmaps, steps=options.steps)
        seconds = time.perf_counter() - begin
        print(f"{'with' if mipmaps else 'without':7} mipmaps: {psnr(found[mipmaps], target):.2f} dB, {seconds:.1f} s")
    textures = [target, found[True], found[False]]
    with torch.no_grad():
        write_png(options.out / "earth.png", grid([globes(textures)], paper=0.0))
    part = slice(HEIGHT // 3, 5 * HEIGHT // 6), slice(WIDTH // 6, WIDTH // 2)
    write_png(options.out / "earth-maps.png", grid([[enlarge(tex[part], 2) for tex in textures]]))


if __name__ == "__main__":
    main()
