"""What a build did with the CUDA files of its source, so that a wheel without GPU code can be explained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class CudaSources:
    """The CUDA files of a source."""

    #: How many there are.
    files: int
    #: The files that no compiler command of the build's log names, and that no other file includes.
    never_compiled: tuple[str, ...] = ()
    #: The file that calls torch.cuda.is_available() during the build, such as `setup.py`; or empty.
    asks_for_gpu: str = ""

    def to_json(self) -> dict[str, Any]:
        """As plain data; `from_json` reads it."""
        return {"files": self.files, "never_compiled": list(self.never_compiled), "asks_for_gpu": self.asks_for_gpu}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CudaSources:
        """Read what `to_json` wrote; raises KeyError, ValueError or TypeError for anything else."""
        return cls(int(data["files"]), tuple(map(str, data["never_compiled"])), str(data["asks_for_gpu"]))
