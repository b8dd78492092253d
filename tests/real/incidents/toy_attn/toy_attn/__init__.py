"""One op with kernels for CPU and CUDA, and a fake kernel that compares the devices of its arguments."""

import torch

from toy_attn import _C as _C


@torch.library.register_fake("toy_attn::forward")
def _fake_forward(value: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    torch._check(value.device == weight.device, lambda: f"value is on {value.device}, weight on {weight.device}")
    torch._check(value.shape == weight.shape, lambda: f"value has shape {value.shape}, weight {weight.shape}")
    return torch.empty_like(value, memory_format=torch.contiguous_format)
