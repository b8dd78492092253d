"""What a user's project needs to install one wheel: exact versions, and the indexes that have them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from packaging.requirements import Requirement
from packaging.version import Version

from builder.matrix.axes import Cuda


@dataclass(frozen=True)
class Pins:
    """A wheel and the torch that it is for.

    Attributes:
        project: the normalized name of the project.
        version: the version of the wheel, with its local part.
        path: the path of the index that lists the wheel: `cu130`, `cpu` or `simple`.
        index: URL of this path; it may hold credentials.
        wheel: URL of the wheel with its sha256; it may hold credentials.
        torch: the exact requirement of torch.
        cuda: the CUDA of this torch.
        torch_index: URL of the index with this torch; empty: the default index.
        machine: the processor, such as `x86_64`.

    """

    project: str
    version: Version
    path: str
    index: str
    wheel: str
    torch: Requirement
    cuda: Cuda
    torch_index: str
    machine: str

    @property
    def requirement(self) -> Requirement:
        """The exact version of the wheel."""
        return Requirement(f"{self.project}=={self.version}")

    @property
    def marker(self) -> str:
        """The environment marker of the machine."""
        return f"sys_platform == 'linux' and platform_machine == '{self.machine}'"

    @property
    def index_name(self) -> str:
        """The name of the index in a pyproject.toml."""
        return f"buildfarm-{self.path}"

    @property
    def torch_index_name(self) -> str:
        """The name of torch's index in a pyproject.toml, as uv's documentation writes it."""
        return f"pytorch-{self.cuda.variant}"

    @property
    def has_credentials(self) -> bool:
        """Whether the URL of the index holds credentials, which no file gets."""
        return without_credentials(self.index) != self.index


def without_credentials(text: str) -> str:
    """The text with `https://host` in place of `https://user:password@host`."""
    return re.sub(r"//[^/\s]*@", "//", text)
