"""Inputs laid so that a write beside them, a write into them and a read past them show; and the bits of tensors."""

from __future__ import annotations

import ctypes
import hashlib
import mmap
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from builder.gate.case import Case
from builder.gate.context import Context, Place, flatten, mapped, places

#: Elements before and after an input, filled with a pattern and looked at afterwards.
_MARGIN = 64
_PATTERN = 0x5A
_PROT_NONE, _PROT_READ_WRITE = 0, 3
_MAP_PRIVATE_ANONYMOUS = 0x22


def digest(*tensors: Tensor) -> str:
    """The bits of tensors, with shapes and dtypes, as a short hash. Needs no numpy."""
    hashed = hashlib.sha256()
    for tensor in tensors:
        hashed.update(f"{tuple(tensor.shape)}{tensor.dtype}".encode())
        plain = tensor.detach().cpu().contiguous()
        if plain.numel():
            hashed.update(ctypes.string_at(plain.data_ptr(), plain.numel() * plain.element_size()))
    return hashed.hexdigest()[:16]


def bits(result: Any) -> str:  # noqa: ANN401
    """`digest` of every tensor of an answer."""
    return digest(*flatten(result))


def mutable(context: Context, case: Case) -> set[int]:
    """Positions of the arguments the op may write to: its schema says so, or the case."""
    overload = context.overload(case)
    written = set(case.mutates)
    if overload is not None:
        arguments = overload._schema.arguments
        written |= {i for i, one in enumerate(arguments) if one.alias_info is not None and one.alias_info.is_write}
    return written


class Canaries:
    """Arguments whose tensors lie inside a larger buffer of a known pattern.

    `args` are called with; `fault` says afterwards what was written that must not be.
    """

    def __init__(self, args: Sequence[Any], written: set[int]) -> None:
        self._buffers: dict[Place, tuple[Tensor, int]] = {}
        self._written = written
        self._before = {place: digest(tensor) for place, tensor in places(args)}
        self.args = mapped(args, self._surround)

    def _surround(self, place: Place, tensor: Tensor) -> Tensor:
        if tensor.layout != torch.strided or not tensor.is_contiguous() or tensor.requires_grad:
            return tensor
        margin = _MARGIN * tensor.element_size()
        size = tensor.numel() * tensor.element_size()
        buffer = torch.full((size + 2 * margin,), _PATTERN, dtype=torch.uint8, device=tensor.device)
        inside = buffer[margin : margin + size].view(tensor.dtype).view(tensor.shape)
        inside.copy_(tensor)
        self._buffers[place] = (buffer, margin)
        return inside

    def fault(self) -> str | None:
        """A sentence, or None."""
        for place, (buffer, margin) in self._buffers.items():
            if bool((buffer[:margin] != _PATTERN).any()) or bool((buffer[-margin:] != _PATTERN).any()):
                return (
                    f"the op writes outside {place}: memory beside that tensor changed; look for an index past an end"
                )
        for place, tensor in places(self.args):
            if place.position not in self._written and digest(tensor) != self._before[place]:
                return (
                    f"the op changes {place}, an input: copy it first, or declare it, with Tensor(a!) in the schema "
                    "or, for a Python callable, with `mutates` in the case"
                )
        return None


class GuardPages:
    """Copies of CPU tensors that end, or begin, at a page nobody may touch: reading past them is a SIGSEGV.

    What was mapped stays mapped until the process ends: an op may keep a reference.
    """

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.mmap.restype = ctypes.c_void_p
        self._libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        self._libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

    def place(self, tensor: Tensor, *, at_end: bool) -> Tensor:
        """The same numbers, flush with the page after (or before) them; the tensor itself where that cannot be."""
        size = tensor.numel() * tensor.element_size()
        if not size or tensor.layout != torch.strided or tensor.device.type != "cpu":
            return tensor
        page = mmap.PAGESIZE
        room = -(-size // page) * page
        base = self._libc.mmap(None, room + 2 * page, _PROT_READ_WRITE, _MAP_PRIVATE_ANONYMOUS, -1, 0)
        if base is None or base == ctypes.c_void_p(-1).value:
            raise MemoryError(f"no room for {room} bytes between guard pages")
        self._libc.mprotect(base, page, _PROT_NONE)
        self._libc.mprotect(base + page + room, page, _PROT_NONE)
        start = base + page + (room - size if at_end else 0)
        memory = (ctypes.c_char * size).from_address(start)
        flat = torch.frombuffer(memory, dtype=tensor.dtype)
        # A tensor of its own, no view: writing into a view is another thing to autograd.
        placed = torch.empty(0, dtype=tensor.dtype).set_(flat.untyped_storage(), 0, tensor.shape)
        with torch.no_grad():
            placed.copy_(tensor)
        return placed.requires_grad_(tensor.requires_grad)
