"""texture on planes: values and gradients against the reference, conventions, edges, refusals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from references import texture as plain
from torch import Tensor
from torch.nn import functional

from diffrast import texture

FILTERS = ["nearest", "linear", "linear-mipmap-nearest", "linear-mipmap-linear"]
PLANES = ["wrap", "clamp", "zero"]
F32 = {"rtol": 1e-4, "atol": 2e-5}
F64 = {"rtol": 1e-9, "atol": 1e-11}


class Scene:
    """Random arguments of one call."""

    def __init__(
        self,
        *,
        height: int = 4,
        width: int = 8,
        channels: int = 3,
        batch: int = 2,
        tex_batch: int = 2,
        rates: bool = True,
        bias: bool = True,
        dtype: torch.dtype = torch.float64,
        seed: int = 0,
    ) -> None:
        def draw(*shape: int, scale: float = 1.0) -> Tensor:
            return (torch.randn(shape, generator=generator, dtype=torch.float64) * scale).to(dtype).requires_grad_()

        generator = torch.Generator().manual_seed(seed)
        self.tex = draw(tex_batch, height, width, channels)
        self.uv = draw(batch, 5, 7, 2, scale=1.2)
        self.uv_da = draw(batch, 5, 7, 4, scale=0.3) if rates else None
        self.bias = draw(batch, 5, 7, scale=0.5) if bias else None

    def arguments(self) -> tuple[Tensor | None, ...]:
        return self.tex, self.uv, self.uv_da, self.bias


def gradients(out: Tensor, inputs: Sequence[Tensor | None], seed: int = 1) -> list[Tensor]:
    """Of a weighted sum of out; zeros where there is none."""
    weight = torch.randn(out.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(out)
    asked = [tensor for tensor in inputs if tensor is not None]
    return list(torch.autograd.grad(out, asked, weight, allow_unused=True, materialize_grads=True))


def check_against_reference(scene: Scene, tolerance: dict[str, float], **modes: Any) -> None:
    out, want = texture(*scene.arguments(), **modes), plain.texture(*scene.arguments(), **modes)
    torch.testing.assert_close(out, want, **tolerance)
    for have, other in zip(gradients(out, scene.arguments()), gradients(want, scene.arguments())):
        torch.testing.assert_close(have, other, **tolerance)


@pytest.mark.parametrize("boundary_mode", PLANES)
@pytest.mark.parametrize("filter_mode", FILTERS)
@pytest.mark.parametrize("given", ["uv_da", "bias", "both"])
def test_values_and_gradients(filter_mode: str, boundary_mode: str, given: str) -> None:
    scene = Scene(rates=given != "bias", bias=given != "uv_da")
    check_against_reference(scene, F64, filter_mode=filter_mode, boundary_mode=boundary_mode)


@pytest.mark.parametrize("boundary_mode", PLANES)
@pytest.mark.parametrize("filter_mode", ["linear", "linear-mipmap-linear"])
def test_values_and_gradients_in_float32(filter_mode: str, boundary_mode: str) -> None:
    # Slopes jump where texels or levels meet; away from there float32 is near float64.
    scene = Scene(dtype=torch.float32)
    with torch.no_grad():
        scene.uv.copy_((scene.uv * 8).floor() / 8 + 0.03)
    check_against_reference(scene, {"rtol": 1e-3, "atol": 1e-3}, filter_mode=filter_mode, boundary_mode=boundary_mode)
    out = texture(*scene.arguments(), filter_mode=filter_mode, boundary_mode=boundary_mode)
    want = plain.texture(*scene.arguments(), filter_mode=filter_mode, boundary_mode=boundary_mode)
    torch.testing.assert_close(out, want, **F32)


@pytest.mark.parametrize(
    "sizes",
    [
        {"height": 1, "width": 1},
        {"height": 1, "width": 16},
        {"height": 16, "width": 1},
        {"height": 32, "width": 2},
        {"tex_batch": 1, "batch": 3},
        {"batch": 1, "tex_batch": 1},
        {"channels": 1},
        {"channels": 4},
        {"channels": 5},
        {"channels": 67},
    ],
    ids=str,
)
@pytest.mark.parametrize("boundary_mode", PLANES)
def test_shapes(sizes: dict[str, int], boundary_mode: str) -> None:
    check_against_reference(Scene(**sizes), F64, filter_mode="linear-mipmap-linear", boundary_mode=boundary_mode)


@pytest.mark.parametrize("height, width", [(3, 5), (7, 1), (6, 10)])
@pytest.mark.parametrize("filter_mode", ["nearest", "linear"])
def test_odd_sizes_without_mips(height: int, width: int, filter_mode: str) -> None:
    check_against_reference(Scene(height=height, width=width), F64, filter_mode=filter_mode, boundary_mode="wrap")


@pytest.mark.parametrize("boundary_mode", PLANES)
@pytest.mark.parametrize("filter_mode", ["linear", "linear-mipmap-linear"])
def test_gradcheck(filter_mode: str, boundary_mode: str) -> None:
    scene = Scene(batch=1, tex_batch=1, channels=2)
    with torch.no_grad():
        # Off the borders of texels on each level; a level near 1/2 or 3/2, off the whole ones.
        scene.uv.copy_((scene.uv * 8).floor() / 8 + 0.03)
        scene.bias.copy_(torch.tensor([0.5, 1.5]).repeat(18)[:35].reshape(1, 5, 7))
        level = plain.footprint_level(scene.tex, scene.uv, scene.uv_da, boundary_mode)
        scene.uv_da.mul_((0.3 * torch.rand_like(level) - 0.1 - level).exp2()[..., None])

    def call(*inputs: Tensor) -> Tensor:
        return texture(*inputs, filter_mode=filter_mode, boundary_mode=boundary_mode)

    inputs = scene.arguments() if "mipmap" in filter_mode else scene.arguments()[:2]
    assert torch.autograd.gradcheck(call, inputs, nondet_tol=0.0)


def grid(*points: tuple[float, ...]) -> Tensor:
    return torch.tensor(points, dtype=torch.float64)[None, None]


CHECKS = torch.arange(12, dtype=torch.float64).reshape(1, 3, 4, 1)


@pytest.mark.parametrize("filter_mode", ["nearest", "linear"])
@pytest.mark.parametrize("boundary_mode", PLANES)
def test_texel_centres(filter_mode: str, boundary_mode: str) -> None:
    """s runs along a row, t down the rows in memory; texel i of n has its centre at (i + 1/2) / n."""
    centres = [((column + 0.5) / 4, (row + 0.5) / 3) for row in range(3) for column in range(4)]
    out = texture(CHECKS, grid(*centres), filter_mode=filter_mode, boundary_mode=boundary_mode)
    torch.testing.assert_close(out.flatten(), CHECKS.flatten(), **F64)


def test_the_origin_is_the_corner_of_the_first_texel() -> None:
    corner = grid((0, 0), (1, 1))
    assert texture(CHECKS, corner, boundary_mode="clamp").flatten().tolist() == [0, 11]
    assert texture(CHECKS, corner, boundary_mode="zero").flatten().tolist() == [0, 11 / 4]
    mean = (0 + 3 + 8 + 11) / 4
    torch.testing.assert_close(texture(CHECKS, corner).flatten().tolist(), [mean, mean])
    nearest = [texture(CHECKS, corner, filter_mode="nearest", boundary_mode=mode).flatten().tolist() for mode in PLANES]
    assert nearest == [[0, 0], [0, 11], [0, 0]]


@pytest.mark.parametrize("filter_mode", FILTERS)
def test_wrap_repeats(filter_mode: str) -> None:
    scene = Scene()
    shift = torch.randint(-4, 5, scene.uv.shape, generator=torch.Generator().manual_seed(3))
    out = texture(*scene.arguments(), filter_mode=filter_mode)
    moved = texture(scene.tex, scene.uv + shift, scene.uv_da, scene.bias, filter_mode=filter_mode)
    torch.testing.assert_close(out, moved, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_wrap_just_below_a_whole_number(dtype: torch.dtype) -> None:
    """-1e-20 - floor(-1e-20) is rounded to 1: still inside."""
    out = texture(CHECKS.to(dtype), torch.full((1, 1, 1, 2), -1e-20, dtype=dtype), filter_mode="nearest")
    assert out.item() == 11


@pytest.mark.parametrize("filter_mode", FILTERS)
@pytest.mark.parametrize("boundary_mode", PLANES)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_coordinate_that_is_not_finite_gives_nothing(filter_mode: str, boundary_mode: str, bad: float) -> None:
    scene = Scene(batch=1, tex_batch=1)
    with torch.no_grad():
        scene.uv[0, 0, :, 0] = bad
        scene.uv[0, 1, :, 1] = bad
    out = texture(*scene.arguments(), filter_mode=filter_mode, boundary_mode=boundary_mode)
    assert (out[0, :2] == 0).all()
    grads = gradients(out, scene.arguments())
    assert all(grad.isfinite().all() for grad in grads)
    assert all((grad[0, :2] == 0).all() for grad in grads[1:])
    rest = texture(*(t if t is scene.tex else t[:, 2:] for t in scene.arguments()), filter_mode=filter_mode,
                   boundary_mode=boundary_mode)  # fmt: skip
    assert torch.equal(out[:, 2:], rest)


@pytest.mark.parametrize("boundary_mode, want", [("clamp", [0, 11, 3]), ("zero", [0, 0, 0])])
def test_far_away(boundary_mode: str, want: list[float]) -> None:
    far = grid((-1e300, -1e9), (1e300, 1e9), (1e300, -7.0)).requires_grad_()
    for filter_mode in ("nearest", "linear"):
        out = texture(CHECKS, far, filter_mode=filter_mode, boundary_mode=boundary_mode)
        assert out.flatten().tolist() == want
    assert (torch.autograd.grad(out.sum(), far)[0] == 0).all()


def test_far_away_wrapped_stays_inside() -> None:
    far = torch.tensor([[[[1e30, -1e30], [3e8, -3e8]]]])
    for filter_mode in ("nearest", "linear"):
        assert texture(torch.ones(1, 3, 4, 1), far, filter_mode=filter_mode).flatten().tolist() == [1, 1]


@pytest.mark.parametrize("shape", [(0, 5, 7), (2, 0, 7), (2, 5, 0)])
@pytest.mark.parametrize("filter_mode", FILTERS)
def test_no_pixels(shape: tuple[int, ...], filter_mode: str) -> None:
    tex = torch.rand(1, 4, 4, 3, requires_grad=True)
    uv, uv_da, bias = (torch.rand(*shape, *more, requires_grad=True) for more in ((2,), (4,), ()))
    out = texture(tex, uv, uv_da, bias, filter_mode=filter_mode)
    assert out.shape == (*shape, 3)
    grads = gradients(out, (tex, uv, uv_da, bias))
    assert [grad.shape for grad in grads] == [tex.shape, uv.shape, uv_da.shape, bias.shape]
    assert (grads[0] == 0).all()


@pytest.mark.parametrize("filter_mode", FILTERS)
def test_no_channels(filter_mode: str) -> None:
    scene = Scene(channels=0)
    out = texture(*scene.arguments(), filter_mode=filter_mode)
    assert out.shape == (2, 5, 7, 0)
    assert all((grad == 0).all() for grad in gradients(out, scene.arguments()))


def crooked(tensor: Tensor) -> Tensor:
    """The same numbers, the first axis innermost in memory."""
    return tensor.detach().movedim(0, -1).contiguous().movedim(-1, 0).requires_grad_()


@pytest.mark.parametrize("filter_mode", FILTERS)
def test_strides_do_not_matter(filter_mode: str) -> None:
    scene = Scene()
    bent = tuple(crooked(tensor) for tensor in scene.arguments())
    assert not any(tensor.is_contiguous() for tensor in bent)
    out, want = texture(*bent, filter_mode=filter_mode), texture(*scene.arguments(), filter_mode=filter_mode)
    assert torch.equal(out, want)
    assert out.is_contiguous()
    for have, other in zip(gradients(out, bent), gradients(want, scene.arguments())):
        assert torch.equal(have, other)
    # An output gradient of stride 0, as sum() gives it.
    summed = torch.autograd.grad(texture(*bent, filter_mode=filter_mode).sum(), bent[0])[0]
    out = texture(*scene.arguments(), filter_mode=filter_mode)
    assert torch.equal(summed, torch.autograd.grad(out, scene.tex, torch.ones_like(out))[0])


def test_the_cpu_repeats_itself() -> None:
    scene = Scene(tex_batch=1, batch=4, dtype=torch.float32, height=32, width=32)
    runs = [gradients(texture(*scene.arguments()), scene.arguments()) for _ in range(3)]
    for other in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(runs[0], other))


def test_auto_takes_the_best_filter() -> None:
    scene = Scene()
    tex, uv, uv_da, bias = scene.arguments()
    assert torch.equal(texture(tex, uv), texture(tex, uv, filter_mode="linear"))
    for given in ((uv_da, None), (None, bias), (uv_da, bias)):
        assert torch.equal(texture(tex, uv, *given), texture(tex, uv, *given, filter_mode="linear-mipmap-linear"))


def test_modes_without_mipmaps_ignore_what_is_for_mipmaps() -> None:
    tex, uv, uv_da, bias = Scene(height=3, width=5).arguments()  # sides that have no mips
    out = texture(tex, uv, uv_da, bias, mip=[tex], filter_mode="linear", max_mip_level=3)
    assert torch.equal(out, texture(tex, uv))


def test_a_gradient_that_is_not_needed_is_not_made() -> None:
    scene = Scene()
    want = gradients(texture(*scene.arguments()), scene.arguments())
    for index in range(4):
        inputs = tuple(t.detach().requires_grad_(i == index) for i, t in enumerate(scene.arguments()))
        out = texture(*inputs)
        weight = torch.randn(out.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        out.backward(weight)
        assert torch.equal(inputs[index].grad, want[index])
        assert all(t.grad is None for i, t in enumerate(inputs) if i != index)


def test_inputs_stay_as_they_are() -> None:
    scene = Scene()
    before = [tensor.detach().clone() for tensor in scene.arguments()]
    gradients(texture(*scene.arguments()), scene.arguments())
    assert all(torch.equal(a, b) for a, b in zip(before, scene.arguments()))


def test_can_be_differentiated_once() -> None:
    scene = Scene()
    grad = torch.autograd.grad(texture(scene.tex, scene.uv).sum(), scene.uv, create_graph=True)[0]
    with pytest.raises(RuntimeError, match="differentiated once, not twice"):
        grad.sum().backward()


def test_linear_agrees_with_grid_sample_in_float32() -> None:
    tex, uv = torch.rand(2, 33, 17, 4), torch.rand(2, 64, 64, 2) * 1.4 - 0.2
    want = functional.grid_sample(
        tex.permute(0, 3, 1, 2), 2 * uv - 1, padding_mode="border", align_corners=False
    ).permute(0, 2, 3, 1)
    torch.testing.assert_close(texture(tex, uv, boundary_mode="clamp"), want, **F32)


TEX, UV, DA, BIAS = (t.detach() for t in Scene().arguments())
WRONG = {
    "tex-3d": ({"tex": TEX[0]}, "tex must have shape"),
    "tex-int": ({"tex": TEX.long()}, "tex must be float32"),
    "tex-half": ({"tex": TEX.half()}, "tex must be float32"),
    "tex-batch": ({"tex": torch.cat([TEX, TEX])}, "tex must have a batch of 1 or that of uv"),
    "uv-3d": ({"uv": UV[0]}, "uv must have shape"),
    "uv-three": ({"uv": torch.rand(2, 5, 7, 3).double()}, "uv must have shape"),
    "uv-float": ({"uv": UV.float()}, "uv must have the dtype of tex"),
    "uv_da-two": ({"uv_da": UV}, "uv_da must have shape"),
    "uv_da-batch": ({"uv_da": DA[:1]}, "uv_da must have shape"),
    "uv_da-float": ({"uv_da": DA.float()}, "uv_da must have the dtype of tex"),
    "bias-4d": ({"mip_level_bias": BIAS[..., None]}, "mip_level_bias must have shape"),
    "bias-width": ({"mip_level_bias": BIAS[:, :, :3]}, "mip_level_bias must have shape"),
    "bias-float": ({"mip_level_bias": BIAS.float()}, "mip_level_bias must have the dtype of tex"),
}


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_argument_is_named(name: str, device: str) -> None:
    """The fake refuses what the kernel refuses."""
    wrong, message = WRONG[name]
    arguments = {"tex": TEX, "uv": UV, "uv_da": DA, "mip_level_bias": BIAS, **wrong}
    arguments = {key: tensor.to(device) for key, tensor in arguments.items()}
    with pytest.raises(RuntimeError, match=f"diffrast.(texture|build_mips): {message}"):
        texture(**arguments, max_mip_level=1)


def test_sides_must_not_be_zero() -> None:
    with pytest.raises(RuntimeError, match="sides from 1"):
        texture(torch.rand(1, 0, 4, 3), torch.rand(1, 2, 2, 2))


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"filter_mode": "cubic"}, "filter_mode must be auto or one of"),
        ({"boundary_mode": "mirror"}, "boundary_mode must be one of"),
        ({"filter_mode": "linear-mipmap-linear"}, "needs uv_da or mip_level_bias"),
        ({"filter_mode": "linear-mipmap-nearest"}, "needs uv_da or mip_level_bias"),
        ({"mip_level_bias": BIAS, "max_mip_level": -1}, "max_mip_level must be 0 or more"),
    ],
)
def test_wrong_modes(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        texture(TEX, UV, **arguments)


@pytest.mark.gpu
@pytest.mark.parametrize("boundary_mode", PLANES)
@pytest.mark.parametrize("filter_mode", FILTERS)
@pytest.mark.parametrize("channels", [1, 3, 4, 67])
def test_cuda_agrees_with_the_cpu(filter_mode: str, boundary_mode: str, channels: int) -> None:
    scene = Scene(dtype=torch.float32, channels=channels)
    with torch.no_grad():
        scene.uv.copy_((scene.uv * 8).floor() / 8 + 0.03)
    moved = tuple(tensor.detach().cuda().requires_grad_() for tensor in scene.arguments())
    out = texture(*scene.arguments(), filter_mode=filter_mode, boundary_mode=boundary_mode)
    there = texture(*moved, filter_mode=filter_mode, boundary_mode=boundary_mode)
    torch.testing.assert_close(there.cpu(), out, **F32)
    for have, want in zip(gradients(there, moved), gradients(out, scene.arguments())):
        torch.testing.assert_close(have.cpu(), want, rtol=1e-3, atol=1e-3)
