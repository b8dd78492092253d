"""Makes torch.cuda answer as on a machine with a GPU of each architecture of the plan, while a recipe is built.

buildfarm puts this folder on PYTHONPATH for recipes with `assume_cuda: true`. Many setup.py scripts call these
functions to decide what to compile. It replaces them when torch.cuda is imported. The architectures are those of
TORCH_CUDA_ARCH_LIST, the newest one is the first GPU. Without the variable, only is_available() is replaced. The
import check uses it to find out whether a failed import only needs a GPU. It must run under every Python that builds a
recipe, so it uses only Python 3.8 syntax.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import re
import sys
from types import ModuleType, SimpleNamespace
from typing import Optional, Sequence  # collections.abc.Sequence takes no [str] before Python 3.9

#: Bytes and multiprocessors of each GPU: those of an H100.
_MEMORY, _MULTIPROCESSORS = 80 << 30, 132


def _capabilities() -> list[tuple[int, int]]:
    listed = re.findall(r"(\d+)\.(\d)", os.environ.get("TORCH_CUDA_ARCH_LIST", ""))
    return sorted({(int(major), int(minor)) for major, minor in listed}, reverse=True)


def _is_available() -> bool:
    """True. From then on `.cuda()` leaves a tensor on the CPU: SparseConvNet tries a product before it compiles."""
    if tensor := vars(sys.modules["torch"]).get("Tensor"):
        tensor.cuda = lambda self, *_, **__: self
    return True


def _answer_as_with_gpus(module: ModuleType) -> None:
    vars(module).update(is_available=_is_available)
    if not (capabilities := _capabilities()):
        return

    def properties(device: object = None) -> SimpleNamespace:
        index = device if isinstance(device, str) else getattr(device, "index", device)
        major, minor = capabilities[int(re.sub(r"\D", "", str(index or 0)) or 0)]
        name = f"NVIDIA GPU of compute capability {major}.{minor}"
        return SimpleNamespace(
            name=name, major=major, minor=minor, total_memory=_MEMORY, multi_processor_count=_MULTIPROCESSORS
        )

    vars(module).update(
        device_count=lambda: len(capabilities),
        current_device=lambda: 0,
        get_device_properties=properties,
        get_device_name=lambda device=None: properties(device).name,
        get_device_capability=lambda device=None: (properties(device).major, properties(device).minor),
        mem_get_info=lambda *_: (_MEMORY, _MEMORY),
    )


class _AssumeCuda(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Optional[Sequence[str]] = None, target: Optional[ModuleType] = None
    ) -> Optional[importlib.machinery.ModuleSpec]:
        if fullname != "torch.cuda":
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            _answer_as_with_gpus(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, _AssumeCuda())
