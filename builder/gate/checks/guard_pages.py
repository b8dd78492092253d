"""Inputs in guarded memory, which shows writes to and outside them and reads outside them; hashes of tensors."""

from __future__ import annotations

import ctypes
import hashlib
import mmap
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from builder.gate.case import Case
from builder.gate.context import Context, TensorPath, iter_tensors, map_tensors

#: Elements before and after an input that are filled with a pattern and compared afterwards.
_MARGIN = 64
_PATTERN = 0x5A
_PROT_NONE, _PROT_READ_WRITE = 0, 3
_MAP_PRIVATE_ANONYMOUS = 0x22


def dense(tensor: Tensor) -> Tensor:
    """Return the numbers of a tensor of any layout on the CPU, without its history."""
    plain = tensor.detach().cpu()
    return plain if plain.layout == torch.strided else plain.to_dense()


def bits(tensor: Tensor) -> bytes:
    """Return the numbers of a tensor of any layout as bytes. Needs no numpy."""
    plain = dense(tensor).resolve_conj().resolve_neg().contiguous()
    return ctypes.string_at(plain.data_ptr(), plain.numel() * plain.element_size()) if plain.numel() else b""


def digest(*tensors: Tensor) -> str:
    """Return a short hash of the bits, shapes and dtypes of tensors of any layout."""
    hashed = hashlib.sha256()
    for tensor in tensors:
        hashed.update(f"{tuple(tensor.shape)}{tensor.dtype}".encode() + bits(tensor))
    return hashed.hexdigest()[:16]


def mutable(context: Context, case: Case) -> set[int]:
    """Return the positions of the arguments that the schema or the case says the op writes to."""
    overload = context.overload(case)
    written = set(case.mutates)
    if overload is not None:
        arguments = overload._schema.arguments
        written |= {i for i, one in enumerate(arguments) if one.alias_info is not None and one.alias_info.is_write}
    return written


class Canaries:
    """Arguments whose tensors are inside larger buffers with a known pattern.

    Call the op with `args`; afterwards `failure` says what the op wrote without permission.
    """

    def __init__(self, args: Sequence[Any], written: set[int]) -> None:
        self._buffers: dict[TensorPath, tuple[Tensor, int]] = {}
        self._written = written
        self._before = {path: digest(tensor) for path, tensor in iter_tensors(args)}
        self.args = map_tensors(args, self._surround)

    def _surround(self, path: TensorPath, tensor: Tensor) -> Tensor:
        if tensor.layout != torch.strided or not tensor.is_contiguous() or tensor.requires_grad:
            return tensor
        margin = _MARGIN * tensor.element_size()
        size = tensor.numel() * tensor.element_size()
        buffer = torch.full((size + 2 * margin,), _PATTERN, dtype=torch.uint8, device=tensor.device)
        inside = buffer[margin : margin + size].view(tensor.dtype).view(tensor.shape)
        inside.copy_(tensor)
        self._buffers[path] = (buffer, margin)
        return inside

    def failure(self) -> str | None:
        """Return what the op wrote without permission as a sentence, or None."""
        for path, (buffer, margin) in self._buffers.items():
            if bool((buffer[:margin] != _PATTERN).any()) or bool((buffer[-margin:] != _PATTERN).any()):
                return (
                    f"the op writes outside {path}: memory next to this tensor changed; look for an index out of range"
                )
        for path, tensor in iter_tensors(self.args):
            if path.position not in self._written and digest(tensor) != self._before[path]:
                return (
                    f"the op changes its input {path}: copy the input first, or declare the change, with Tensor(a!) in "
                    "the schema or, for a Python callable, with `mutates` in the case"
                )
        return None


class GuardPages:
    """Copies of CPU tensors that end, or begin, at a page without access rights: reading past them is a SIGSEGV.

    The memory stays mapped until the process ends, because an op may keep a reference.
    """

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.mmap.restype = ctypes.c_void_p
        self._libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        self._libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

    def copy(self, tensor: Tensor, *, at_end: bool) -> Tensor:
        """Return a copy directly before (`at_end`) or after a guard page, or the tensor itself if that is impossible.

        The copy has the same strides, or those of torch.empty_like if the tensor has gaps or overlaps. Raises
        MemoryError if the kernel maps no more memory.
        """
        size = tensor.numel() * tensor.element_size()
        if not size or tensor.layout != torch.strided or tensor.device.type != "cpu":
            return tensor
        page = mmap.PAGESIZE
        length = -(-size // page) * page
        base = self._libc.mmap(None, length + 2 * page, _PROT_READ_WRITE, _MAP_PRIVATE_ANONYMOUS, -1, 0)
        if base is None or base == ctypes.c_void_p(-1).value:
            raise MemoryError(f"cannot map {length} bytes between guard pages")
        self._libc.mprotect(base, page, _PROT_NONE)
        self._libc.mprotect(base + page + length, page, _PROT_NONE)
        start = base + page + (length - size if at_end else 0)
        memory = (ctypes.c_char * size).from_address(start)
        flat = torch.frombuffer(memory, dtype=tensor.dtype)
        # Not a view, because autograd treats writes into a view differently.
        strides = torch.empty_like(tensor, requires_grad=False).stride()
        placed = torch.empty(0, dtype=tensor.dtype).set_(flat.untyped_storage(), 0, tensor.shape, strides)
        with torch.no_grad():
            placed.copy_(tensor)
        return placed.requires_grad_(tensor.requires_grad)
