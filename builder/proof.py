"""Every check of a wheel; and a proof: the recorded verdict of one check on a wheel, or on a wheel in one cell.

"Not run" and "accepted" are never "passed".
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from builder.gate.check_table import MEANINGS
from builder.matrix.axes import Cell
from builder.untrusted import text

#: The proofs of `x.whl` are in `x.whl.proofs.json`.
PROOFS_SUFFIX = ".proofs.json"


class Check(StrEnum):
    """The name of a check. [Checks](checks.md) lists all names."""

    # The members have the order in which reports show them.
    meaning: str
    """What a passed check shows, one sentence."""

    def __new__(cls, value: str, meaning: str = "") -> Self:
        """A member; a check of the op gate takes its meaning from the gate's table."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning or MEANINGS[value]
        return member

    # Static checks, which read the wheel file.
    PAYLOAD = "payload", "The wheel contains a shared library, and GPU code if it is a CUDA extension."
    TAGS = (
        "tags",
        "The file name and the file WHEEL have tags for the same systems. The libraries need no glibc newer than the"
        " manylinux tag.",
    )
    MODULES = (
        "modules",
        "Every Python that the tags name can import the extension modules, by the names of their files and functions.",
    )
    METADATA = (
        "metadata",
        "Name, version, torch requirement and Python requirement agree with the file name and the recipe.",
    )
    RECORD = "record", "pip and uv can read the archive, and RECORD lists every file of the wheel with its hash."
    GRAFTED = "grafted", "The wheel bundles no library of torch, CUDA or the NVIDIA driver."
    CONTENTS = (
        "contents",
        "No file with the name of a library is something else, such as a pointer of Git LFS. It remarks on stray"
        " top-level packages, equal libraries, code that runs when Python starts, and CUDA sources without their"
        " headers.",
    )
    ABI3 = "abi3", "The libraries of a wheel tagged abi3 or abi3t use only the limited API of the tagged Python."
    STABLE = (
        "stable-abi",
        "The libraries of a stable-ABI wheel use only C functions (shims) that the oldest torch of the wheel has.",
    )
    LINKAGE = "linkage", "Every undefined symbol of the wheel's libraries is defined by a library in the cell."
    DEVICE_CODE = (
        "device-code",
        "Each library with GPU code contains SASS for every architecture of the build, and PTX for each `+PTX`.",
    )
    SIZE = "size", "The wheel file is not larger than `max_size` of the recipe, or `verify --max-size`."
    GPUS = (
        "gpus",
        "Every GPU that `verify --gpu` names runs a library with GPU code, with the driver of `--driver`. A remark says"
        " which GPUs a library is for, if it is not for all.",
    )
    LOADER = (
        "loader",
        "The dynamic loader accepts the libraries: no executable stack, no text relocations, no RPATH to folders of"
        " others, one CUDA runtime. It finds the libraries of the wheel that Python modules need.",
    )
    WINDOW = "window", "The wheel links with every torch release that its METADATA allows."
    CURES = (
        "cures",
        "The GPU code of a source is the same with the cures of a build as without; CPU functions may differ.",
    )
    # In the cell's environment.
    IMPORT = "import", "The wheel can be installed and imported in the cell's environment."
    # The op gate's, in the cell's environment.
    OPS = "ops"
    LOADED = "loaded"
    DISPATCH = "dispatch"
    IMPORT_ORDER = "import-order"
    VALUES = "values"
    GRADIENTS = "gradients"
    LAYOUTS = "layouts"
    EDGES = "edges"
    REPEAT = "repeat"
    MEMORY = "memory"
    OPCHECK = "opcheck"
    FAKE = "fake"
    DEVICES = "devices"
    EXPORT = "export"
    COMPILE = "compile"
    # Checks of the op gate on a GPU.
    GPU_VALUES = "gpu-values"
    GPU_STREAM = "gpu-stream"
    GPU_GRAPH = "gpu-graph"
    GPU_DEVICE = "gpu-device"
    GPU_SANITIZER = "gpu-sanitizer"

    @property
    def on_gpu(self) -> bool:
        """Whether the check needs a GPU."""
        return self.value.startswith("gpu-")


#: The checks of the file that depend on nothing but the file; `build`, `publish` and `verify` make them.
OF_ANY_WHEEL = (Check.RECORD, Check.LOADER)


class Verdict(StrEnum):
    """The result of a check."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_RUN = "not run"
    ACCEPTED = "accepted"


@dataclass(frozen=True)
class Proof:
    """One verdict."""

    #: sha256 of the wheel file, hex.
    wheel: str
    #: The cell it applies to, or None for a check that reads the wheel file alone.
    cell: Cell | None
    check: Check
    verdict: Verdict
    #: For failed and not run a sentence with what to do; for accepted the finding; for passed a short figure or empty.
    reason: str = ""
    #: Data for programs (symbols, archs, files, versions, machine).
    evidence: dict[str, Any] = field(default_factory=dict)
    #: UTC time, ISO 8601, seconds.
    when: str = ""
    #: Digest of what the verdict depends on beside the wheel: claims, imports, the code of the checks. With a different
    #: basis the check runs again.
    basis: str = ""

    @property
    def has_run(self) -> bool:
        """Whether there is a verdict other than "not run"."""
        return self.verdict is not Verdict.NOT_RUN

    @property
    def remark(self) -> bool:
        """Whether a "not run" shows a gap of the tests that the author of the recipe can close."""
        return not self.has_run and bool(self.evidence.get("remark"))

    @property
    def accepted(self) -> str:
        """Why the recipe accepts the finding; empty for other verdicts."""
        return str(self.evidence.get("accepted", ""))

    def to_json(self) -> dict[str, Any]:
        """Return plain data for the store and for `--json`."""
        cell = str(self.cell) if self.cell else None
        return vars(self) | {"cell": cell, "check": str(self.check), "verdict": str(self.verdict)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Read what `to_json` wrote; raises KeyError or ValueError for anything else."""
        return cls(
            **{name: text(data[name]) for name in ("wheel", "reason", "when", "basis")},
            cell=Cell.parse(data["cell"]) if data["cell"] else None,
            check=Check(data["check"]),
            verdict=Verdict(data["verdict"]),
            evidence=dict(data["evidence"]),
        )


def proofs_of(data: list[dict[str, Any]]) -> list[Proof]:
    """The proofs in plain data; raises as `Proof.from_json` for anything else."""
    return [Proof.from_json(entry) for entry in data]


def proofs_path(wheel: Path) -> Path:
    """The path of the file with the proofs beside a wheel."""
    return wheel.with_name(f"{wheel.name}{PROOFS_SUFFIX}")


def proofs_json(proofs: Iterable[Proof]) -> bytes:
    """The content of that file."""
    return (json.dumps([proof.to_json() for proof in proofs], indent=1) + "\n").encode()


def now() -> str:
    """UTC time in ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
