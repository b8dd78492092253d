"""PNG files from float images, with the standard library alone (ISO/IEC 15948)."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import torch
from torch import Tensor


def write_png(path: Path, image: Tensor) -> None:
    """Write an (h, w, 3) image in [0, 1] whose row 0 is the bottom, as `rasterize` draws it."""
    rows = (image.detach().cpu().clamp(0, 1) * 255).round().to(torch.uint8).flip(0)
    height, width, _ = rows.shape
    above = torch.cat([torch.zeros_like(rows[:1]), rows[:-1]])
    left = torch.cat([torch.zeros_like(rows[:, :1]), rows[:, :-1]], dim=1)
    filters = torch.stack([rows, rows - left, rows - above]).reshape(3, height, -1)  # bytes wrap around
    # The filter whose bytes, read as signed, are smallest compresses best: the usual rule.
    best = filters.view(torch.int8).short().abs().sum(-1).argmin(0)
    lines = b"".join(bytes([kind, *filters[kind, y].tolist()]) for y, kind in enumerate(best.tolist()))

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines, 9)) + chunk(b"IEND", b"")
    )


def enlarge(image: Tensor, factor: int) -> Tensor:
    """Each pixel of an (h, w, 3) image as a square of `factor` pixels."""
    return image.repeat_interleave(factor, 0).repeat_interleave(factor, 1)


def grid(rows: list[list[Tensor]], gap: int = 8, paper: float = 1.0) -> Tensor:
    """Images in rows, the first on top, with margins; rows must be equally long, images of a row equally high."""
    bands = []
    for row in rows:
        upright = row[0].new_full((row[0].shape[0], gap, 3), paper)
        bands.append(torch.cat([part for image in row for part in (upright, image)] + [upright], dim=1))
    level = bands[0].new_full((gap, bands[0].shape[1], 3), paper)
    stack = [part for band in reversed(bands) for part in (level, band)]
    return torch.cat([*stack, level])
