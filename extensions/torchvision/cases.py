"""Every op that torchvision's official wheel registers: regions, boxes, deformable convolution, pictures."""

from __future__ import annotations

import base64
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from builder.gate import Case, Make
from references import boxes, deformable, pictures, regions

DOUBLES = (torch.float32, torch.float64)
FLOATS = (*DOUBLES, torch.float16)
#: The CPU kernels work in float16 throughout, coordinates included.
TOLERANCES = {torch.float16: (1e-2, 2e-2)}

ATOMICS = ("cpu",)  # gradients are summed by atomics on CUDA
CONTIGUOUS_PLACES = "upstream reads the places, or channels, as if they were contiguous, and answers wrong numbers"
LAST_PIXELS = (
    "upstream's ps_roi_pool never reads the last row and column, its backward gives them a gradient all the same"
)
AT_LEAST_TWO = (
    "upstream's fake kernel of nms promises two boxes or more: a traced program that keeps one or none raises"
)
NO_FAKE = "upstream registers no fake kernel: its catch-all kernel asks the fake tensor for its data and stops there"
UNTRACED = {check: NO_FAKE for check in ("opcheck", "fake", "devices", "export", "compile")}
NO_TENSOR = {check: "it takes no tensor" for check in UNTRACED}

Inputs = Callable[[Make], Sequence[Any]]

#: (number in the batch, x1, y1, x2, y2): inside, across edges, thin, far outside.
REGIONS = (
    (0, 0.25, 0.75, 3.0, 4.0),
    (1, 1.5, 1.25, 3.5, 4.75),
    (1, -2.0, -1.25, 2.0, 2.5),
    (0, 2.0, 1.0, 2.25, 4.0),
    (0, 20.0, 20.0, 24.0, 24.0),
)
#: Whole corners, since what is rounded must not hang on a last bit; none at the last row or column.
WHOLE_REGIONS = ((0, 0.0, 1.0, 3.0, 4.0), (1, 1.0, 2.0, 3.0, 4.0), (0, 2.0, 1.0, 3.0, 4.0))
LAST_REGIONS = ((1, 1.0, 2.0, 4.0, 5.0),)
SIZE = (2, 8, 5, 4)  # batch, channels, height, width of the image
BINS = (2, 2)


def image(make: Make, grad: bool = True) -> Tensor:
    """Distinct numbers, so that each maximum has one place."""
    count = math.prod(SIZE)
    order = Make("cpu", torch.float64, seed=1).rand(count).argsort().double()
    return make.tensor((order - count / 2).reshape(SIZE) / 128, grad=grad)


def rois(make: Make, chosen: Sequence[Sequence[float]]) -> Tensor:
    """(K, 5), K may be 0."""
    return make.tensor(torch.tensor(chosen, dtype=torch.float64).reshape(-1, 5))


def pooling(chosen: Sequence[Sequence[float]], *arguments: Any, scale: float = 1.0) -> Inputs:
    """(image, rois, scale, P, Q, ...)."""
    return lambda make: (image(make), rois(make, chosen), scale, *BINS, *arguments)


def gradient_of(forward: Callable[..., Any]) -> Callable[[Tensor, Tensor], Tensor]:
    """The gradient of the image for a gradient of `forward(image)`; the image's numbers do not matter."""

    def gradient(grad: Tensor, like: Tensor) -> Tensor:
        with torch.enable_grad():
            pixels = torch.zeros(SIZE, dtype=grad.dtype, device=like.device, requires_grad=True)
            answer = forward(pixels)
            answer = answer[0] if isinstance(answer, tuple) else answer
            return torch.autograd.grad(answer, pixels, grad)[0]

    return gradient


def roi_align_backward(grad: Tensor, at: Tensor, scale: float, high: int, wide: int, *rest: Any) -> Tensor:
    """rest: batch, channels, height, width, sampling, aligned."""
    sampling, aligned = rest[-2:]
    pooled = lambda pixels: regions.roi_align(pixels, at, scale, high, wide, sampling, aligned)  # noqa: E731
    return gradient_of(pooled)(grad, at)


def ps_roi_align_backward(
    grad: Tensor, at: Tensor, _: Tensor, scale: float, high: int, wide: int, sampling: int, *size: int
) -> Tensor:
    """The channels are those of the definition."""
    return gradient_of(lambda pixels: regions.ps_roi_align(pixels, at, scale, high, wide, sampling))(grad, at)


def ps_roi_pool_backward(grad: Tensor, at: Tensor, _: Tensor, scale: float, high: int, wide: int, *size: int) -> Tensor:
    """The channels are those of the definition."""
    return gradient_of(lambda pixels: regions.ps_roi_pool(pixels, at, scale, high, wide))(grad, at)


def roi_pool_backward(
    grad: Tensor, at: Tensor, argmax: Tensor, scale: float, high: int, wide: int, *size: int
) -> Tensor:
    """Each gradient goes where the maximum was."""
    batch, channels, height, width = size
    flat = grad.new_zeros(batch, channels, height * width)
    for region, number in enumerate(at[:, 0].long().tolist()):
        places = argmax[region].flatten(1).long()
        flat[number].scatter_add_(1, places.clamp(min=0), grad[region].flatten(1) * (places >= 0))
    return flat.reshape(batch, channels, height, width)


def pooled_gradient(
    chosen: Sequence[Sequence[float]], channels: int, *, mapped: str = "", sampling: Any = ()
) -> Inputs:
    """(grad, rois[, places or channels], scale, P, Q, ..., sizes, ...) of a backward op."""

    def made(make: Make) -> Sequence[Any]:
        at = rois(make, chosen)
        grad = make.randn(len(chosen), channels, *BINS)
        if not mapped:
            return grad, at, 1.0, *BINS, *SIZE, *sampling
        pixels = image(Make("cpu", torch.float64), grad=False)
        arguments = (pixels, at.cpu().double(), 1.0, *BINS, *sampling)
        return grad, at, getattr(regions, mapped)(*arguments)[1].to(make.device), 1.0, *BINS, *sampling, *SIZE

    return made


def region_cases() -> list[Case]:
    """Four ways to pool, each with nothing to pool as well, and their backward ops."""
    forward: tuple[tuple[str, str, Sequence[Sequence[float]], tuple[Any, ...], Any], ...] = (
        ("roi_align", "two samples a side", REGIONS, (2, False), regions.roi_align),
        ("roi_align", "aligned, as many samples as pixels", REGIONS, (0, True), regions.roi_align),
        ("roi_pool", "five regions", REGIONS, (), regions.roi_pool),
        ("ps_roi_align", "two samples a side", REGIONS, (2,), regions.ps_roi_align),
        ("ps_roi_align", "as many samples as pixels", REGIONS, (0,), regions.ps_roi_align),
        ("ps_roi_pool", "three regions", WHOLE_REGIONS, (), regions.ps_roi_pool),
    )
    cases = []
    for op, name, chosen, arguments, reference in forward:
        for situation, here, edge in ((name, chosen, ""), (f"{name}, no region", (), "empty")):
            cases.append(
                Case(
                    op=f"torchvision::{op}",
                    name=situation,
                    inputs=pooling(here, *arguments),
                    reference=reference,
                    dtypes=FLOATS,
                    tolerances=TOLERANCES,
                    gradcheck=True,
                    edge=edge,
                )
            )
        cases.append(
            Case(
                op=f"torchvision::{op}",
                name=f"{name}, half the scale",
                inputs=pooling(WHOLE_REGIONS, *arguments, scale=0.5),
                reference=reference,
                dtypes=DOUBLES,
            )
        )
    cases.append(
        Case(
            op="torchvision::ps_roi_pool",
            name="a region up to the last row and column",
            inputs=pooling(LAST_REGIONS),
            reference=regions.ps_roi_pool,
            dtypes=DOUBLES,
            not_claimed={check: LAST_PIXELS for check in ("values", "gradients", "gpu-values")},
        )
    )
    backward = (
        ("_roi_align_backward", 8, "", (2, True), roi_align_backward, REGIONS),
        ("_roi_pool_backward", 8, "roi_pool", (), roi_pool_backward, REGIONS),
        ("_ps_roi_align_backward", 2, "ps_roi_align", (2,), ps_roi_align_backward, REGIONS),
        ("_ps_roi_pool_backward", 2, "ps_roi_pool", (), ps_roi_pool_backward, WHOLE_REGIONS),
    )
    for op, channels, mapped, sampling, reference, chosen in backward:
        for name, here, edge in (("regions", chosen, ""), ("no region", (), "empty")):
            cases.append(
                Case(
                    op=f"torchvision::{op}",
                    name=name,
                    inputs=pooled_gradient(here, channels, mapped=mapped, sampling=sampling),
                    reference=reference,
                    dtypes=FLOATS,
                    tolerances=TOLERANCES,
                    edge=edge,
                    deterministic=ATOMICS,
                    not_claimed={"layouts": CONTIGUOUS_PLACES} if mapped else {},
                )
            )
    return cases


def scattered_boxes(count: int) -> Inputs:
    """Boxes that overlap more or less, their scores, and the threshold."""

    def made(make: Make) -> Sequence[Any]:
        corner = make.rand(count, 2, high=10.0)
        return torch.cat([corner, corner + make.rand(count, 2, low=1.0, high=8.0)], 1), make.rand(count), 0.3

    return made


def equal_boxes(make: Make) -> Sequence[Any]:
    """Three times the same box: one is kept, the one with the best score."""
    return make.tensor([[0, 0, 4, 4]] * 3), make.tensor([0.25, 0.75, 0.5]), 0.5


def box_cases() -> list[Case]:
    """Non-maximum suppression."""
    not_claimed = {
        "gpu-graph": "how many boxes are kept depends on the numbers: it waits for the device",
        "export": AT_LEAST_TWO,
        "compile": AT_LEAST_TWO,
        "devices": "upstream's fake kernel of nms does not look at devices: a mixture shows when it runs, not before",
    }
    situations = (
        ("forty boxes", scattered_boxes(40), ""),
        ("equal boxes", equal_boxes, ""),
        ("one box", scattered_boxes(1), "batch"),
        ("no box", scattered_boxes(0), "empty"),
    )
    return [
        Case(
            op="torchvision::nms",
            name=name,
            inputs=inputs,
            reference=boxes.nms,
            dtypes=DOUBLES,
            edge=edge,
            not_claimed=not_claimed,
        )
        for name, inputs, edge in situations
    ]


def convolution(
    *, batch: int = 2, groups: int = 1, offset_groups: int = 1, use_mask: bool = True, grad: bool = True
) -> Inputs:
    """(image, weight, offset, mask, bias, stride, padding, dilation, groups, offset groups, with mask)."""

    def made(make: Make) -> Sequence[Any]:
        taps, high, wide = 3 * 2, 4, 1
        # Sixteenths and a half: exact in float16, and no sample where its gradient jumps.
        places = make.rand(batch, offset_groups * taps * 2, high, wide, low=-24.0, high=24.0)
        mask_shape = (batch, offset_groups * taps, high, wide) if use_mask else (batch, 1)
        return (
            make.randn(batch, 4, 4, 4, grad=grad),
            make.randn(6, 4 // groups, 3, 2, grad=grad),
            make.tensor((places.double().floor() + 0.5) / 16, grad=grad),
            make.rand(*mask_shape, grad=grad and use_mask),
            make.randn(6, grad=grad),
            *(1, 2, 1, 0, 1, 2),
            *(groups, offset_groups, use_mask),
        )

    return made


def deform_conv2d_backward(grad: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    """Autograd through the reference: gradients of image, weight, offset, mask and bias."""
    with torch.enable_grad():
        leaves = [tensor.detach().requires_grad_() for tensor in arguments[:5]]
        out = deformable.deform_conv2d(*leaves, *arguments[5:])
        found = torch.autograd.grad(out, leaves, grad, allow_unused=True)
    return tuple(torch.zeros_like(leaf) if one is None else one for one, leaf in zip(found, leaves))


def convolution_gradient(**sizes: Any) -> Inputs:
    """The same, after a gradient of the result."""
    forward = convolution(grad=False, **sizes)

    def made(make: Make) -> Sequence[Any]:
        arguments = forward(make)
        return make.randn(arguments[0].shape[0], 6, *arguments[2].shape[2:]), *arguments

    return made


def convolution_cases() -> list[Case]:
    """Deformable convolution, both versions, and its backward op."""
    situations: tuple[tuple[str, dict[str, Any], str], ...] = (
        ("with a mask", {}, ""),
        ("without a mask", {"use_mask": False}, ""),
        ("two groups, two of offsets", {"groups": 2, "offset_groups": 2}, ""),
        ("one picture", {"batch": 1}, "batch"),
        ("no picture", {"batch": 0}, "empty"),
    )
    cases = []
    for name, sizes, edge in situations:
        shared: Mapping[str, Any] = {"name": name, "dtypes": FLOATS, "tolerances": TOLERANCES, "edge": edge}
        cases += [
            Case(
                op="torchvision::deform_conv2d",
                inputs=convolution(**sizes),
                reference=deformable.deform_conv2d,
                gradcheck=True,
                **shared,
            ),
            Case(
                op="torchvision::_deform_conv2d_backward",
                inputs=convolution_gradient(**sizes),
                reference=deform_conv2d_backward,
                deterministic=ATOMICS,
                **shared,
            ),
        ]
    return cases


def picture(channels: int = 3) -> Tensor:
    """(C, 16, 16) uint8, smooth, so that a JPEG of it is close to it."""
    y, x = torch.meshgrid(torch.arange(16), torch.arange(16), indexing="ij")
    return torch.stack([40 + 20 * c + 6 * x + 4 * y for c in range(channels)]).to(torch.uint8)


def as_tensor(data: bytes) -> Tensor:
    """Bytes as a 1-D tensor, on the CPU wherever the case runs: these ops decode there."""
    return torch.tensor(list(data), dtype=torch.uint8)


def as_bytes(tensor: Tensor) -> bytes:
    """And back."""
    return bytes(tensor.cpu().tolist())


def jpeg() -> Tensor:
    """The picture as the wheel's own encoder writes it: the standard library has none."""
    return torch.ops.image.encode_jpeg(picture(), 95)


def close_to_the_picture(decoded: Tensor, *_: Any) -> None:
    """A JPEG of quality 95 loses a few levels, not more."""
    assert decoded.shape == picture().shape, f"the picture has shape {tuple(decoded.shape)}"
    worst = int((decoded.cpu().int() - picture().int()).abs().max())
    assert worst <= 6, f"the picture comes back {worst} levels off"


def is_a_png_of(result: Tensor, source: Tensor, _: int) -> None:
    """The standard library reads the same picture."""
    assert torch.equal(pictures.read_png(as_bytes(result)), source.cpu()), "another picture comes back"


def is_a_jpeg(result: Tensor, *_: Any) -> None:
    """It begins and ends as one, and decodes to nearly the same."""
    data = as_bytes(result)
    assert data[:2] == b"\xff\xd8" and data[-2:] == b"\xff\xd9", "not from SOI to EOI"
    close_to_the_picture(torch.ops.image.decode_jpeg(result.cpu(), 0, False))


#: WebP, lossless, 4 x 3: byte i of its pixels is 7 * i. Written by Pillow, since the standard library cannot.
WEBP = base64.b64decode("UklGRjQAAABXRUJQVlA4TCcAAAAvA4AAAF8gFkzOEeRvG8NU3KFi/hPbgSCARCGWWGaZZZZJI/ofmO4A")
PALETTE = [(2 * i, 255 - i, i) for i in range(128)]
PIXELS = [(5 * i) % 128 for i in range(20)]


def picture_file(_: Make) -> Sequence[Any]:
    """A file in memory that has a path, and what to write into it."""
    return f"/proc/self/fd/{os.memfd_create('picture')}", as_tensor(bytes(range(200)))


def was_written(_: None, path: str, data: Tensor) -> None:
    """The file holds the bytes."""
    assert Path(path).read_bytes() == as_bytes(data), "the file holds other bytes"


def of_this_cuda(version: int) -> None:
    """Built for the CUDA of torch: 1000 times its major version, and a little."""
    running = torch.version.cuda
    assert version == -1 or running is None or version // 1000 == int(running.split(".")[0]), (
        f"built with CUDA {version}, beside torch's CUDA {running}"
    )


def is_a_bool(result: Any) -> None:
    """Either is an answer."""
    assert isinstance(result, bool), f"{result!r} is no bool"


def is_a_jpeg_version(result: int) -> None:
    """The interfaces libjpeg has had: 6.2, 7, 8 and 9."""
    assert result in {62, 70, 80, 90}, f"libjpeg has no interface {result}"


def decoded_gif(_: Tensor) -> Tensor:
    """The colours of the pixels, (3, H, W)."""
    return torch.tensor([PALETTE[i] for i in PIXELS], dtype=torch.uint8).reshape(4, 5, 3).permute(2, 0, 1).contiguous()


def decoded_webp(_: Tensor, mode: int) -> Tensor:
    """Byte i is 7 * i."""
    return ((torch.arange(36) * 7) % 256).to(torch.uint8).reshape(3, 4, 3).permute(2, 0, 1).contiguous()


def on_cpu(op: str, name: str, inputs: Inputs, **fields: Any) -> Case:
    """A case of image.so: bytes in, bytes out, on the CPU alone."""
    fields = {"not_claimed": UNTRACED, "contiguous_only": op.startswith("decode"), **fields}
    return Case(op=f"image::{op}", name=name, inputs=inputs, dtypes=(torch.uint8,), devices=("cpu",), **fields)


def png(channels: int) -> Inputs:
    """A PNG by the standard library, any mode, no turning by EXIF."""
    return lambda _: (as_tensor(pictures.write_png(picture(channels))), 0, False)


def picture_cases() -> list[Case]:
    """image.so: decoders against files written by the standard library, encoders read back."""
    same = {channels: lambda *_, channels=channels: picture(channels) for channels in (1, 3, 4)}
    cases = [on_cpu("decode_png", f"{n} channels", png(n), reference=same[n]) for n in same]
    cases += [
        on_cpu("encode_png", f"{n} channels", lambda _, n=n: (picture(n), 6), invariant=is_a_png_of) for n in (1, 3)
    ]
    on_cuda: Mapping[str, Any] = {
        "dtypes": (torch.uint8,),
        "devices": ("cuda",),
        "not_claimed": {**UNTRACED, "gpu-graph": "nvJPEG waits for the device"},
    }
    return [
        *cases,
        on_cpu("decode_image", "a PNG", png(3), reference=same[3]),
        on_cpu("decode_image", "a JPEG", lambda _: (jpeg(), 0, False), invariant=close_to_the_picture),
        on_cpu("decode_jpeg", "a smooth picture", lambda _: (jpeg(), 0, False), invariant=close_to_the_picture),
        on_cpu("encode_jpeg", "a smooth picture", lambda _: (picture(), 95), invariant=is_a_jpeg),
        on_cpu(
            "decode_gif",
            "one frame",
            lambda _: (as_tensor(pictures.write_gif(PIXELS, 5, PALETTE)),),
            reference=decoded_gif,
        ),
        on_cpu("decode_webp", "lossless", lambda _: (as_tensor(WEBP), 0), reference=decoded_webp),
        on_cpu(
            "read_file",
            "this file",
            lambda _: (__file__,),
            reference=lambda path: as_tensor(Path(path).read_bytes()),
            not_claimed=NO_TENSOR,
        ),
        on_cpu("write_file", "two hundred bytes", picture_file, invariant=was_written, side_effects=True),
        on_cpu("_jpeg_version", "asked", lambda _: (), invariant=is_a_jpeg_version, not_claimed=NO_TENSOR),
        on_cpu("_is_compiled_against_turbo", "asked", lambda _: (), invariant=is_a_bool, not_claimed=NO_TENSOR),
        Case(
            op="image::decode_jpegs_cuda",
            name="two pictures",
            inputs=lambda make: ([jpeg(), jpeg()], 0, torch.device(make.device)),
            invariant=lambda result, *_: [close_to_the_picture(one) for one in result] and None,
            mixed_devices=(0,),
            **on_cuda,
        ),
        Case(
            op="image::encode_jpegs_cuda",
            name="two pictures",
            inputs=lambda make: ([picture().to(make.device), picture().to(make.device)], 95),
            invariant=lambda result, *_: [is_a_jpeg(one) for one in result] and None,
            **on_cuda,
        ),
    ]


CASES = [
    *region_cases(),
    *box_cases(),
    *convolution_cases(),
    *picture_cases(),
    Case(
        op="torchvision::_cuda_version",
        inputs=lambda _: (),
        invariant=of_this_cuda,
        devices=("cpu",),
        not_claimed=NO_TENSOR,
    ),
]
