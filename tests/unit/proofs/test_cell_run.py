"""Companions of a wheel. The run itself is tested in test_prover.py and tests/full."""

from __future__ import annotations

import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest

from builder.errors import Code, MissingToolError
from builder.proofs.cells import cell_run
from builder.proofs.cells.cell_environment import CellEnvironment
from builder.proofs.cells.cell_run import _as_with_gpu, _install_companions, _missing_driver
from builder.proofs.cells.import_check import ImportOutcome, try_import
from builder.wheels.toolchain.uv import DiskFullError


def test_missing_companion_does_not_prevent_the_others() -> None:
    installed: list[str] = []

    def install(more: Sequence[str]) -> None:
        if "decord" in more:
            raise MissingToolError("the index does not have it", Code.PACKAGE_NOT_FOUND)
        installed[:] = more

    _install_companions(["transformers", "decord", "numpy"], install)
    assert installed == ["transformers", "numpy"]


def test_full_disk_is_not_a_missing_companion() -> None:
    def install(_: Sequence[str]) -> None:
        raise DiskFullError("the disk is full", stage="environment")

    with pytest.raises(DiskFullError):
        _install_companions(["numpy"], install)


@pytest.mark.parametrize(
    ("library", "here", "lacking"),
    [
        ("libcuda.so.1", None, True),
        ("libcuda.so.1", "libcuda.so.1", False),  # the driver is here: the wheel is at fault
        ("libcudart.so.13", None, False),  # not of the driver
    ],
)
def test_an_import_without_the_driver_says_nothing(
    library: str, here: str | None, lacking: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cell_run, "find_library", lambda _: here)
    reason = f"import of ops failed: ImportError: {library}: cannot open shared object file: No such file or directory"
    assert bool(_missing_driver(reason)) is lacking


@dataclass(frozen=True)
class Cell:
    """An environment without a GPU, with a torch that only counts GPUs."""

    folder: Path

    def try_import(
        self, modules: Sequence[str], *, as_with_gpu: bool = False, stubs: Path | None = None
    ) -> ImportOutcome:
        python, owner = self.folder / "bin" / "python", str(self.folder)
        return try_import(python, modules, owner=owner, as_with_gpu=as_with_gpu, stubs=stubs)

    def judge(self, code: str) -> tuple[str, str]:
        """The reason why the import of a package with this code failed, and why this is no fault of the package."""
        (site,) = self.folder.glob("lib/python*/site-packages")
        (site / "ops").mkdir(exist_ok=True)
        (site / "ops" / "__init__.py").write_text(f"{code}\n")
        first = self.try_import(["ops"])
        outcome, lacking = _as_with_gpu(cast("CellEnvironment", self), ["ops"], first, Path("ops.whl"))
        return outcome.reason, lacking


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Cell:
    folder = tmp_path_factory.mktemp("cell")
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "torch" / "cuda").mkdir(parents=True)
    (site / "torch" / "__init__.py").write_text(
        "from types import SimpleNamespace\nfrom torch import cuda\n"
        "__version__ = '2.11'\nversion = SimpleNamespace(cuda='13.0')\n"
    )
    (site / "torch" / "cuda" / "__init__.py").write_text(
        "def device_count(): return 0\ndef is_available(): return False\n"
        "def init(): raise RuntimeError('Found no NVIDIA driver on your system')\n"
        "def get_device_capability(): init()\ndef get_device_properties(device): init()\n"
    )
    return Cell(folder)


NO_NVML = "class NVMLError(Exception): ...\nraise NVMLError('NVML Shared Library Not Found')"
ASKS = "import torch\nif not torch.cuda.is_available():\n    "
CPP = "import os, sys\nprint('  what():  CUDA driver version is insufficient', file=sys.stderr, flush=True)\nos.abort()"


@pytest.mark.parametrize(
    "code",
    [
        "import torch\nmajor, minor = torch.cuda.get_device_capability()",
        "import torch\nname = torch.cuda.get_device_properties(0).name",
        "from torch.cuda import get_device_properties\nget_device_properties('cuda:0').no_such_fact",
        "import torch\ntorch.cuda.init()",
        "import torch\nassert torch.cuda.is_available()",
        f"{ASKS}raise SystemExit('no device')",
        f"{ASKS}import os; os._exit(3)",
        f"{ASKS}import ops.only_on_cpu",
        NO_NVML,
        "try:\n    import torch; torch.cuda.init()\nexcept RuntimeError as error:\n    raise OSError('ops') from error",
        "raise RuntimeError('0 active drivers ([]). There should only be one.')",
        CPP,
    ],
)
def test_an_import_that_needs_a_gpu_says_nothing(cell: Cell, code: str) -> None:
    assert cell.judge(code)[1].startswith("it needs a GPU when it is imported, and there is none here: import of ops")


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import torch\ntorch.cuda.is_available()\nimport ops.missing", "No module named"),
        ("import torch\ntorch.cuda.get_device_capability()\nimport ops.missing", "No module named"),
        ("import torch\nassert not torch.cuda.is_available() and False", "AssertionError"),
        ("try:\n    import torch; torch.cuda.init()\nexcept RuntimeError:\n    pass\nimport ops.no", "No module named"),
        ("import os\nos.abort()", "crashed with SIGABRT"),
        ("raise SystemExit(0)", "ended the process"),
    ],
)
def test_an_import_that_fails_on_a_gpu_too_is_a_failure(cell: Cell, code: str, reason: str) -> None:
    found, lacking = cell.judge(code)
    assert not lacking
    assert reason in found
