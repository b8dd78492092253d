"""Rasterization: which triangle each pixel sees and where on it, with the gradients of that place.

`torch.ops.diffrast.rasterize` and `.rasterize_backward` come from the compiled library and keep no state; autograd and
shapes without data are written here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ._arguments import (
    alert_not_deterministic,
    check,
    check_build,
    check_floating,
    check_index,
    check_like,
    check_shape,
    refuse_second_derivative,
)

_MAX_RESOLUTION = 1 << 16


class RasterizeCudaContext:
    """Stands where nvdiffrast wants a context; holds nothing.

    Args:
        device: accepted for its place in the signature; tensors say where the work is done.

    """

    def __init__(self, device: torch.device | str | int | None = None) -> None:
        self.device = device


class RasterizeGLContext:
    """Stands where nvdiffrast wants an OpenGL context; no OpenGL is involved.

    Args:
        output_db: False: `rasterize` returns a rast_db of shape (N, h, w, 0).
        mode: accepted and ignored.
        device: accepted and ignored.

    """

    def __init__(
        self, output_db: bool = True, mode: str = "automatic", device: torch.device | str | int | None = None
    ) -> None:
        self.output_db = output_db
        self.mode = mode
        self.device = device

    def set_context(self) -> None:
        """Nothing to do: there is no OpenGL context."""

    def release_context(self) -> None:
        """Nothing to do: there is no OpenGL context."""


Context = RasterizeCudaContext | RasterizeGLContext


def _check_mesh(op: str, pos: Tensor, tri: Tensor) -> None:
    check_floating(op, "pos", pos)
    check(
        op,
        pos.dim() in (2, 3) and pos.shape[-1] == 4,
        lambda: f"pos must have shape (N, V, 4), or (V, 4) with ranges, got {tuple(pos.shape)}",
    )
    check_shape(op, "tri", tri, (None, 3), "(T, 3)")
    check_index(op, "tri", tri, pos)


def _check_resolution(op: str, height: int, width: int) -> None:
    for size in (height, width):
        check(
            op,
            1 <= size <= _MAX_RESOLUTION,
            lambda: f"height and width must be from 1 to {_MAX_RESOLUTION}, got {height} x {width}",
        )


@torch.library.register_fake("diffrast::rasterize")
def _rasterize_fake(
    pos: Tensor, tri: Tensor, height: int, width: int, ranges: Tensor | None, peel: Tensor | None, db: bool
) -> tuple[Tensor, Tensor]:
    op = "rasterize"
    _check_mesh(op, pos, tri)
    _check_resolution(op, height, width)
    if pos.dim() == 3:
        check(op, ranges is None, lambda: f"ranges are for pos of shape (V, 4), got {tuple(pos.shape)}")
        images = pos.shape[0]
    else:
        if ranges is None:
            raise RuntimeError("diffrast.rasterize: pos of shape (V, 4) needs ranges")
        check_shape(op, "ranges", ranges, (None, 2), "(N, 2)")
        check(op, ranges.dtype == torch.int32, lambda: "ranges must be int32")
        check(
            op,
            ranges.device.type == "cpu" or ranges.device == pos.device,
            lambda: "ranges must be on the CPU or on the same device as pos",
        )
        images = ranges.shape[0]
    shape = (images, height, width, 4)
    if peel is not None:
        check_shape(op, "peel", peel, shape, f"(N, H, W, 4) = {shape}")
        check_like(op, "pos", pos, peel=peel)
    return pos.new_empty(shape), pos.new_empty((images, height, width, 4 if db else 0))


@torch.library.register_fake("diffrast::rasterize_backward")
def _rasterize_backward_fake(
    pos: Tensor, tri: Tensor, rast: Tensor, grad_rast: Tensor, grad_rast_db: Tensor | None
) -> Tensor:
    op = "rasterize_backward"
    _check_mesh(op, pos, tri)
    check_shape(op, "rast", rast, (pos.shape[0] if pos.dim() == 3 else None, None, None, 4), "(N, H, W, 4)")
    shape = tuple(rast.shape)
    _check_resolution(op, shape[1], shape[2])
    gradients = {"grad_rast": grad_rast}
    if grad_rast_db is not None:
        gradients["grad_rast_db"] = grad_rast_db
    for name, tensor in gradients.items():
        check_shape(op, name, tensor, shape, f"(N, H, W, 4) = {shape}")
    check_like(op, "pos", pos, rast=rast, **gradients)
    return pos.new_empty(pos.shape)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    pos, tri = inputs[:2]
    ctx.save_for_backward(pos, tri, output[0])
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, grad_rast: Tensor | None, grad_rast_db: Tensor | None) -> tuple[Tensor | None, ...]:
    pos, tri, rast = ctx.saved_tensors
    nothing = (None,) * 6
    if grad_rast_db is not None and grad_rast_db.shape[-1] == 0:
        grad_rast_db = None
    if grad_rast is None and grad_rast_db is None:
        return (None, *nothing)
    alert_not_deterministic("rasterize", pos)
    if grad_rast is None:
        grad_rast = torch.zeros_like(rast)
    return (torch.ops.diffrast.rasterize_backward(pos, tri, rast, grad_rast, grad_rast_db), *nothing)


torch.library.register_autograd("diffrast::rasterize", _gradients, setup_context=_setup_context)
refuse_second_derivative("rasterize")


def _rasterize(
    glctx: Context | None,
    pos: Tensor,
    tri: Tensor,
    resolution: tuple[int, int],
    ranges: Tensor | None,
    grad_db: bool,
    peel: Tensor | None,
) -> tuple[Tensor, Tensor]:
    check_build("rasterize", pos)
    height, width = resolution
    if pos.dim() == 3:
        ranges = None  # as in nvdiffrast: instanced mode ignores them
    db = glctx.output_db if isinstance(glctx, RasterizeGLContext) else True
    rast, rast_db = torch.ops.diffrast.rasterize(pos, tri, height, width, ranges, peel, db)
    return rast, rast_db if grad_db else rast_db.detach()


def rasterize(
    glctx: Context | None,
    pos: Tensor,
    tri: Tensor,
    resolution: tuple[int, int],
    ranges: Tensor | None = None,
    grad_db: bool = True,
) -> tuple[Tensor, Tensor]:
    """Find the nearest triangle at each pixel's centre.

    OpenGL's conventions: clip space with x/w, y/w and z/w in [-1, 1], larger z/w farther, row 0 at the bottom. All
    triangles are drawn, whichever way they turn. What is nearer than the near plane, farther than the far plane or
    behind the eye is clipped.

    Coverage is decided on positions rounded to 1/256 pixel, exactly: of triangles that share an edge or a vertex, one
    and only one covers a pixel centre upon it (the one to its right, or above it). Of triangles at the same depth the
    first in `tri` is seen.

    A triangle with a position that is not finite, or with an index outside of `pos`, is not drawn, on CPU and CUDA.

    Args:
        glctx: a RasterizeCudaContext, a RasterizeGLContext or None; only the latter's output_db matters.
        pos: (N, V, 4) clip-space positions, one mesh per image; or (V, 4) with `ranges`. f32; on the CPU also f64.
        tri: (T, 3) int32, vertex indices, T < 2^30.
        resolution: (height, width) in pixels, each from 1 to 65536.
        ranges: (N, 2) int32, first triangle and count of each image; for pos of shape (V, 4), else ignored. On the CPU,
            where a range outside of `tri` is an error, or on the device of pos, where it is cut to what `tri` has
            (and where a CUDA graph can capture the call). Their counts are then not known in advance: time and
            memory are spent on N·T triangles, 8 bytes each, and N·T must stay below 2^31.
        grad_db: whether gradients flow from rast_db to pos.

    Returns:
        rast: (N, height, width, 4): u, v, z/w, and the triangle's number plus one; all 0 where nothing is seen.
            Vertex 0 is at (u, v) = (1, 0), vertex 1 at (0, 1), vertex 2 at (0, 0); perspective-correct. Numbers beyond
            2^24 do not fit in a float and continue in the floats that follow.
        rast_db: (N, height, width, 4): du/dX, du/dY, dv/dX, dv/dY, per pixel.

    Gradients flow to x, y and w of pos, from u, v and rast_db; z/w and the number carry none. On CUDA they are summed
    by atomics, in an order that may change from run to run.

    Raises:
        RuntimeError: a dtype, shape, device or range is wrong; the message names the argument.

    """
    return _rasterize(glctx, pos, tri, resolution, ranges, grad_db, None)


class DepthPeeler:
    """Rasterizes what lies behind what is seen, layer after layer.

    Arguments as of `rasterize`; no context is reserved, so other calls may be made in between.

        with DepthPeeler(glctx, pos, tri, resolution) as peeler:
            for _ in range(layers):
                rast, rast_db = peeler.rasterize_next_layer()
    """

    def __init__(
        self,
        glctx: Context | None,
        pos: Tensor,
        tri: Tensor,
        resolution: tuple[int, int],
        ranges: Tensor | None = None,
        grad_db: bool = True,
    ) -> None:
        self._arguments = (glctx, pos, tri, resolution, ranges, grad_db)
        self._active = False
        self._last: Tensor | None = None

    def __enter__(self) -> DepthPeeler:
        self._active = True
        self._last = None
        return self

    def __exit__(self, *exception: object) -> None:
        self._active = False
        self._last = None

    def rasterize_next_layer(self) -> tuple[Tensor, Tensor]:
        """The nearest triangles behind the last layer, as `rasterize` returns them; the first layer is its own.

        At each pixel, what is at or in front of the last layer's z/w is not drawn. Behind an empty layer all is empty.

        Raises:
            RuntimeError: called outside of the `with` block, or as `rasterize`.

        """
        if not self._active:
            raise RuntimeError("diffrast.DepthPeeler: rasterize_next_layer must be called within `with`")
        rast, rast_db = _rasterize(*self._arguments, self._last)
        self._last = rast.detach()
        return rast, rast_db
