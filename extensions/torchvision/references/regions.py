"""Pooling of regions of interest in plain PyTorch, by the definitions; float64 inside, the input's dtype outside.

`rois` are (K, 5): number in the batch, then corners (x1, y1, x2, y2) in units of 1 / scale pixels. An answer is
(K, C, P, Q): P bins down, Q bins across. Position-sensitive pooling takes bin (p, q) of its channel c from channel
(c * P + p) * Q + q of the input.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def _weights(start: float, size: float, bins: int, samples: int, length: int) -> Tensor:
    """(bins, length): what each pixel of an axis gives to each bin, the mean of bilinear samples.

    A sample more than a pixel outside gives nothing; one less than that is moved to the edge.
    """
    weights = torch.zeros(bins, length, dtype=torch.float64)
    for number in range(bins):
        for sample in range(samples):
            at = start + (number + (sample + 0.5) / samples) * size / bins
            if not -1.0 <= at <= length:
                continue
            at = min(max(at, 0.0), length - 1.0)
            low = int(at)
            weights[number, low] += 1 - (at - low)
            weights[number, min(low + 1, length - 1)] += at - low
    return weights / max(samples, 1)


def roi_align(image: Tensor, rois: Tensor, scale: float, high: int, wide: int, sampling: int, aligned: bool) -> Tensor:
    """Mask R-CNN (arXiv 1703.06870), section 3: means of bilinear samples, nothing rounded. Differentiable in image.

    `aligned` moves the regions by half a pixel, so that pixel centres are at whole numbers.
    """
    pixels, pooled = image.double(), []
    for batch, x1, y1, x2, y2 in rois.double().tolist():
        shift = 0.5 if aligned else 0.0
        left, top = x1 * scale - shift, y1 * scale - shift
        width, height = (x2 - x1) * scale, (y2 - y1) * scale
        if not aligned:
            width, height = max(width, 1.0), max(height, 1.0)
        down = sampling if sampling > 0 else math.ceil(height / high)
        across = sampling if sampling > 0 else math.ceil(width / wide)
        rows = _weights(top, height, high, down, image.shape[2]).to(image.device)
        columns = _weights(left, width, wide, across, image.shape[3]).to(image.device)
        pooled.append(torch.einsum("ph,chw,qw->cpq", rows, pixels[int(batch)], columns))
    empty = (0.0 * pixels.sum()).expand(0, image.shape[1], high, wide)
    return (torch.stack(pooled) if pooled else empty).to(image.dtype)


def _channels(outputs: int, high: int, wide: int, device: torch.device) -> Tensor:
    """(outputs, P, Q): the input's channel of each bin in position-sensitive pooling."""
    return torch.arange(outputs * high * wide, device=device).reshape(outputs, high, wide)


def _of_own_channel(pooled: Tensor, high: int, wide: int) -> tuple[Tensor, Tensor]:
    """From all channels of all bins to the one of each bin, and its number as int32."""
    channels = _channels(pooled.shape[1] // (high * wide), high, wide, pooled.device)
    channels = channels.expand(pooled.shape[0], *channels.shape)
    rows = torch.arange(high, device=pooled.device)[:, None]
    columns = torch.arange(wide, device=pooled.device)
    regions = torch.arange(pooled.shape[0], device=pooled.device)[:, None, None, None]
    return pooled[regions, channels, rows, columns], channels.to(torch.int32).contiguous()


def ps_roi_align(
    image: Tensor, rois: Tensor, scale: float, high: int, wide: int, sampling: int
) -> tuple[Tensor, Tensor]:
    """Light-Head R-CNN (arXiv 1711.07264): roi_align, each bin from its own channel; and the channels (int32)."""
    return _of_own_channel(roi_align(image, rois, scale, high, wide, sampling, True), high, wide)


def _nearest(number: float) -> int:
    """Rounded half away from zero, as C does."""
    return int(math.copysign(math.floor(abs(number) + 0.5), number))


def _bins(start: int, size: int, bins: int, length: int) -> list[tuple[int, int]]:
    """First pixel and the one after the last of each bin of an axis."""
    cut = []
    for number in range(bins):
        first, last = start + math.floor(number * size / bins), start + math.ceil((number + 1) * size / bins)
        cut.append((min(max(first, 0), length), min(max(last, 0), length)))
    return cut


def roi_pool(image: Tensor, rois: Tensor, scale: float, high: int, wide: int) -> tuple[Tensor, Tensor]:
    """Fast R-CNN (arXiv 1504.08083), section 2.1: the maximum of each bin and its place h * W + w (int32, -1: none)."""
    width = image.shape[3]
    values, places = [], []
    for batch, x1, y1, x2, y2 in rois.double().tolist():
        left, top, right, bottom = (_nearest(edge * scale) for edge in (x1, y1, x2, y2))
        for first, last in _bins(top, max(bottom - top + 1, 1), high, image.shape[2]):
            for begin, end in _bins(left, max(right - left + 1, 1), wide, width):
                piece = image[int(batch), :, first:last, begin:end]
                if piece.numel() == 0:
                    values.append(0.0 * image[0, :, 0, 0])
                    places.append(torch.full_like(values[-1], -1, dtype=torch.int32))
                    continue
                most, at = piece.flatten(1).max(1)
                across = end - begin
                values.append(most)
                places.append(((first + at // across) * width + begin + at % across).to(torch.int32))
    shape = (len(rois), high, wide, image.shape[1])
    if not values:
        empty = (0.0 * image.sum()).expand(shape).permute(0, 3, 1, 2)
        return empty, torch.empty_like(empty, dtype=torch.int32)
    pooled, argmax = torch.stack(values).reshape(shape), torch.stack(places).reshape(shape)
    return pooled.permute(0, 3, 1, 2).contiguous(), argmax.permute(0, 3, 1, 2).contiguous()


def ps_roi_pool(image: Tensor, rois: Tensor, scale: float, high: int, wide: int) -> tuple[Tensor, Tensor]:
    """R-FCN (arXiv 1605.06409), section 3: the mean of each bin, from a channel of its own; and the channels."""
    pixels, pooled = image.double(), []
    for batch, x1, y1, x2, y2 in rois.double().tolist():
        left, top, right, bottom = (_nearest(edge * scale) for edge in (x1, y1, x2, y2))
        rows = _means(top, max(bottom - top, 1), high, image.shape[2]).to(image.device)
        columns = _means(left, max(right - left, 1), wide, image.shape[3]).to(image.device)
        pooled.append(torch.einsum("ph,chw,qw->cpq", rows, pixels[int(batch)], columns))
    empty = (0.0 * pixels.sum()).expand(0, image.shape[1], high, wide)
    return _of_own_channel((torch.stack(pooled) if pooled else empty).to(image.dtype), high, wide)


def _means(start: int, size: int, bins: int, length: int) -> Tensor:
    """(bins, length): each bin is the mean of its pixels, or nothing."""
    weights = torch.zeros(bins, length, dtype=torch.float64)
    for number, (first, last) in enumerate(_bins(start, size, bins, length)):
        weights[number, first:last] = 1.0 / max(last - first, 1)
    return weights
