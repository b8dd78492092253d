"""Non-maximum suppression in plain PyTorch, by its definition."""

from __future__ import annotations

import torch
from torch import Tensor


def overlap(box: Tensor, others: Tensor) -> Tensor:
    """Intersection over union of (4,) with (n, 4), corners (x1, y1, x2, y2)."""
    low, high = torch.maximum(box[:2], others[:, :2]), torch.minimum(box[2:], others[:, 2:])
    shared = (high - low).clamp(min=0).prod(-1)
    return shared / ((box[2:] - box[:2]).prod() + (others[:, 2:] - others[:, :2]).prod(-1) - shared)


def nms(boxes: Tensor, scores: Tensor, threshold: float) -> Tensor:
    """Which of (n, 4) boxes are kept, best score first: each overlaps no better one by more than the threshold."""
    boxes, kept = boxes.double(), []
    for number in scores.argsort(descending=True, stable=True).tolist():
        if not kept or bool((overlap(boxes[number], boxes[kept]) <= threshold).all()):
            kept.append(number)
    return torch.tensor(kept, dtype=torch.int64, device=boxes.device)
