"""Fit the vertices and the face colours of a cube to images of 16 x 16 pixels, by gradient descent.

What moves the vertices is the gradient that `antialias` gives them at the outlines: inside a face of one colour there
is none. Every step sees new views; the target's cube is only ever looked at through its images.

    python cube.py --out images
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from png import enlarge, grid, write_png
from torch import Tensor
from views import clip_space, perspective, rotations, turned

from diffrast import RasterizeCudaContext, antialias, antialias_construct_topology_hash, interpolate, rasterize

CORNERS = [[x, y, z] for x in (-0.5, 0.5) for y in (-0.5, 0.5) for z in (-0.5, 0.5)]
TRIANGLES = [
    [0, 1, 3], [0, 3, 2], [4, 6, 7], [4, 7, 5], [0, 4, 5], [0, 5, 1],
    [2, 3, 7], [2, 7, 6], [0, 2, 6], [0, 6, 4], [1, 5, 7], [1, 7, 3],
]  # fmt: skip
FACE_COLORS = [
    [0.93, 0.36, 0.28], [0.98, 0.75, 0.29], [0.36, 0.72, 0.47],
    [0.22, 0.56, 0.80], [0.55, 0.40, 0.73], [0.94, 0.93, 0.88],
]  # fmt: skip
BACKGROUND = 0.13


class Renderer:
    """Draws cubes with one colour a face; differentiable in corners and colours."""

    def __init__(self, device: torch.device) -> None:
        self.context = RasterizeCudaContext(device)
        self.tri = torch.tensor(TRIANGLES, dtype=torch.int32, device=device)
        self.edges = antialias_construct_topology_hash(self.tri)
        # Faces have two triangles, and all corners of a triangle have its face's colour.
        self.face_of = torch.arange(6, dtype=torch.int32, device=device).repeat_interleave(2)[:, None].repeat(1, 3)
        self.lens = perspective(3.0, 1.0, 10.0).to(device)

    def __call__(self, corners: Tensor, colors: Tensor, turn: Tensor, size: int) -> Tensor:
        """(N, size, size, 3)."""
        distance = corners.new_full((len(turn),), 3.2)
        pos = clip_space(corners, turn, distance, self.lens)
        rast, _ = rasterize(self.context, pos, self.tri, (size, size))
        image, _ = interpolate(colors, rast, self.face_of)
        image = torch.where(rast[..., 3:] > 0, image, torch.full_like(image, BACKGROUND))
        return antialias(image, rast, pos, self.tri, self.edges)


@dataclass
class Fit:
    """What a run of `fit` found, and how it got there."""

    corners: Tensor
    colors: Tensor
    errors: list[float] = field(default_factory=list)  # root mean square distance of the corners, at each step
    stages: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)


def fit(
    steps: int,
    size: int = 16,
    views: int = 8,
    device: torch.device | str = "cpu",
    seed: int = 0,
    keep: Sequence[int] = (),
) -> Fit:
    """Start from a crumpled grey cube and descend; `keep` names the steps whose state is kept."""
    device = torch.device(device)
    generator = torch.Generator().manual_seed(seed)
    draw = Renderer(device)
    target = torch.tensor(CORNERS, device=device), torch.tensor(FACE_COLORS, device=device)
    crumpled = (torch.rand(8, 3, generator=generator) - 0.5) * 0.6
    corners = (target[0] + crumpled.to(device)).requires_grad_()
    colors = torch.full((6, 3), 0.5, device=device, requires_grad=True)
    optimizer = torch.optim.Adam(
        [{"params": [corners], "lr": 0.02}, {"params": [colors], "lr": 0.03}], betas=(0.9, 0.99)
    )
    # Constant, then down to a hundredth: the last steps settle.
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, 0.01 ** (2 * step / steps - 1)))
    found = Fit(corners.detach(), colors.detach())
    for step in range(steps + 1):
        found.errors.append((corners.detach() - target[0]).square().sum(-1).mean().sqrt().item())
        if step in keep:
            found.stages[step] = corners.detach().clone(), colors.detach().clone()
        if step == steps:
            break
        turn = rotations(views, generator).to(device)
        with torch.no_grad():
            wanted = draw(*target, turn, size)
        loss = (draw(corners, colors, turn, size) - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return found


def picture(found: Fit, size: int, device: torch.device, side: int = 144) -> Tensor:
    """The stages from left to right and the target last: as the optimizer sees them, and in fine."""
    draw = Renderer(device)
    turn = turned(0.52, 0.66).to(device)
    target = torch.tensor(CORNERS, device=device), torch.tensor(FACE_COLORS, device=device)
    columns = [*found.stages.values(), target]
    with torch.no_grad():
        coarse = [enlarge(draw(*state, turn, size)[0], side // size) for state in columns]
        # Twice as fine and averaged, so that edges inside the outline are smooth too.
        fine = [draw(*state, turn, 2 * side)[0].unflatten(0, (side, 2)).unflatten(2, (side, 2)) for state in columns]
    return grid([coarse, [image.mean((1, 3)) for image in fine]])


def main(argv: Sequence[str] | None = None) -> None:
    """Fit, say how it went, write cube.png."""
    parser = argparse.ArgumentParser(description="Fit a cube to images of a few pixels.")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("images"), help="folder for cube.png")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--size", type=int, default=16, help="pixels along a side of the images")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)  # images this small are drawn fastest by one
    stages = sorted({0, options.steps // 100, options.steps // 30, options.steps // 8, options.steps})
    begin = time.perf_counter()
    found = fit(options.steps, options.size, device=options.device, keep=stages)
    print(f"{options.steps} steps of 8 images, {options.size} x {options.size}, {time.perf_counter() - begin:.1f} s")
    for step in stages:
        print(f"step {step:5}: corners off by {found.errors[step]:.5f} (the cube's side is 1)")
    write_png(options.out / "cube.png", picture(found, options.size, torch.device(options.device)))


if __name__ == "__main__":
    main()
