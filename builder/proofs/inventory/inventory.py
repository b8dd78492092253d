"""A symbol inventory: which symbols the libraries of one torch release define, as one small file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from builder.errors import UsageError
from builder.matrix.axes import Cuda, Torch
from builder.proofs.static.symbol_table import SymbolTable
from builder.untrusted.json_data import JsonError, parse_json

#: Version of the file format.
_FORMAT = 1
#: Bytes of one inventory. That of torch 2.11 for CUDA 13.0 has 1.2 MB.
MAX_BYTES = 64 * 2**20


@dataclass(frozen=True, order=True)
class Release:
    """A torch release as one wheel has it: release, CUDA and processor. Its name is `torch2.11.0-cu130-x86_64`."""

    torch: Torch
    cuda: Cuda
    machine: str

    @classmethod
    def parse(cls, text: str) -> Release:
        """Read a name; raises UsageError for anything else."""
        torch, _, rest = text.removeprefix("torch").partition("-")
        cuda, _, machine = rest.partition("-")
        return cls(Torch.parse(torch), Cuda.parse(cuda), machine)

    def __str__(self) -> str:
        return f"torch{self.torch}-{self.cuda.variant}-{self.machine}"


@dataclass(frozen=True)
class Inventory:
    """The symbols of one torch release."""

    release: Release
    table: SymbolTable

    def to_bytes(self) -> bytes:
        """The file; the same libraries make the same bytes."""
        data = {"format": _FORMAT, "release": str(self.release), "table": self.table.to_json()}
        return json.dumps(data, sort_keys=True, separators=(",", ":")).encode() + b"\n"

    @classmethod
    def from_bytes(cls, data: bytes, where: str = "") -> Inventory:
        """Read what `to_bytes` wrote; raises UsageError for anything else."""
        try:
            return parse_json(data, cls._of)
        except JsonError as error:
            raise UsageError(
                "this is not a symbol inventory that this version of buildfarm reads", where=where
            ) from error

    @classmethod
    def _of(cls, found: dict[str, Any]) -> Inventory:
        if found["format"] != _FORMAT:
            raise ValueError("a different format")
        return cls(Release.parse(found["release"]), SymbolTable.from_json(found["table"]))
