"""MSDeformAttn and the drop-in names."""

from __future__ import annotations

import math
import pickle
import warnings

import pytest
import torch
from cases import make_case, reference
from cases import Case

from ms_deform_attn import (
    MSDeformAttn,
    MSDeformAttnFunction,
    MultiScaleDeformableAttention,
    MultiScaleDeformableAttnFunction,
    ms_deform_attn,
)

SHAPES = torch.tensor([[6, 4], [3, 2]])
STARTS = torch.tensor([0, 24])


def layer(seed: int = 0, **changes: int) -> MSDeformAttn:
    torch.manual_seed(seed)
    built = MSDeformAttn(**{"d_model": 16, "n_levels": 2, "n_heads": 4, "n_points": 3, **changes})
    for parameter in built.parameters():  # zeros would hide a wrong use of a weight
        torch.nn.init.normal_(parameter, std=0.3)
    return built


def inputs(last: int = 2) -> tuple[torch.Tensor, ...]:
    random = torch.Generator().manual_seed(1)
    query = torch.rand(2, 5, 16, generator=random)
    points = torch.rand(2, 5, 2, last, generator=random)
    memory = torch.rand(2, 30, 16, generator=random)
    return query, points, memory, SHAPES, STARTS


def by_hand(module: MSDeformAttn, query, points, memory, mask=None):
    """The module's formula with loops, from the paper."""
    heads, levels, count, width = module.n_heads, module.n_levels, module.n_points, 4
    value = module.value_proj(memory)
    if mask is not None:
        value = torch.where(mask[..., None], torch.zeros_like(value), value)
    offsets = module.sampling_offsets(query).view(2, 5, heads, levels, count, 2)
    weights = module.attention_weights(query).view(2, 5, heads, levels * count).softmax(-1)
    weights = weights.view(2, 5, heads, levels, count)
    loc = torch.empty_like(offsets)
    for level in range(levels):
        height, wide = SHAPES[level].tolist()
        for axis, size in ((0, wide), (1, height)):
            centre = points[:, :, level, axis][:, :, None, None]
            if points.shape[-1] == 2:
                loc[:, :, :, level, :, axis] = centre + offsets[:, :, :, level, :, axis] / size
            else:
                box = points[:, :, level, 2 + axis][:, :, None, None]
                loc[:, :, :, level, :, axis] = centre + offsets[:, :, :, level, :, axis] / count * box * 0.5
    return module.output_proj(reference(Case(value.view(2, 30, heads, width), SHAPES, STARTS, loc, weights)))


@pytest.mark.parametrize("last", [2, 4], ids=["points", "boxes"])
@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
def test_module_follows_the_formula(last: int, masked: bool):
    module, arguments = layer(), inputs(last)
    mask = torch.rand(2, 30, generator=torch.Generator().manual_seed(2)) > 0.7 if masked else None
    have = module(*arguments, mask)
    torch.testing.assert_close(have, by_hand(module, *arguments[:3], mask), rtol=1e-4, atol=1e-5)
    have.sum().backward()
    assert all(parameter.grad is not None for parameter in module.parameters())


def test_padding_is_not_seen():
    module, (query, points, memory, *rest) = layer(), inputs()
    mask = torch.zeros(2, 30, dtype=torch.bool)
    mask[:, 20:] = True
    poisoned = memory.clone()
    poisoned[:, 20:] = 1e6
    torch.testing.assert_close(module(query, points, poisoned, *rest, mask), module(query, points, memory, *rest, mask))


def test_parameters_are_upstreams():
    module = MSDeformAttn()
    assert {name: tuple(parameter.shape) for name, parameter in module.named_parameters()} == {
        "sampling_offsets.weight": (256, 256),
        "sampling_offsets.bias": (256,),
        "attention_weights.weight": (128, 256),
        "attention_weights.bias": (128,),
        "value_proj.weight": (256, 256),
        "value_proj.bias": (256,),
        "output_proj.weight": (256, 256),
        "output_proj.bias": (256,),
    }


def test_first_offsets_point_around():
    bias = MSDeformAttn().sampling_offsets.bias.view(8, 4, 4, 2)
    for head in range(8):
        x, y = math.cos(head * math.pi / 4), math.sin(head * math.pi / 4)
        longest = max(abs(x), abs(y))
        for point in range(4):
            want = torch.tensor([x, y]) / longest * (point + 1)
            torch.testing.assert_close(bias[head, :, point], want.expand(4, 2), rtol=1e-5, atol=1e-5)


def test_refusals_and_warning():
    with pytest.raises(ValueError, match="d_model must be a multiple of n_heads, but got 10 and 4"):
        MSDeformAttn(d_model=10, n_heads=4)
    with pytest.warns(UserWarning, match="= 3 is not a power of 2"):
        MSDeformAttn(d_model=12, n_heads=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        MSDeformAttn()
    with pytest.raises(ValueError, match="reference_points must have 2 or 4"):
        layer()(*inputs(3))


def test_list_argument():
    module, arguments = layer(), inputs()
    have = module(*arguments, None, [(6, 4), (3, 2)])
    torch.testing.assert_close(have, module(*arguments), rtol=0, atol=0)


def test_locations_stay_in_f32_under_autocast(monkeypatch: pytest.MonkeyPatch):
    import ms_deform_attn.attention as attention

    seen = []

    def spy(*arguments):
        seen.extend(tensor.dtype for tensor in (arguments[0], arguments[3]))
        return ms_deform_attn(*arguments)

    monkeypatch.setattr(attention, "ms_deform_attn", spy)
    module = layer()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = module(*inputs())
    assert seen == [torch.bfloat16, torch.float32]
    torch.testing.assert_close(out.float(), module(*inputs()), rtol=5e-2, atol=5e-2)


def test_whole_module_in_bfloat16():
    module = layer()
    want = module(*inputs())
    arguments = [tensor.bfloat16() if tensor.is_floating_point() else tensor for tensor in inputs()]
    out = module.bfloat16()(*arguments)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), want, rtol=1e-1, atol=1e-1)


def test_module_travels():
    module = layer()
    again = pickle.loads(pickle.dumps(module))
    torch.testing.assert_close(again(*inputs()), module(*inputs()), rtol=0, atol=0)


def test_other_names():
    case = make_case()
    want = ms_deform_attn(*case)
    levels = [(6, 4), (3, 2)]
    assert torch.equal(MSDeformAttnFunction.apply(*case, 64), want)
    assert torch.equal(MultiScaleDeformableAttnFunction.apply(*case, 64), want)
    value, shapes, starts, loc, weight = case
    assert torch.equal(MultiScaleDeformableAttention()(value, shapes, levels, starts, loc, weight, 64), want)
