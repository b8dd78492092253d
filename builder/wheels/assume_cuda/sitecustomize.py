"""Answers True to torch.cuda.is_available() while a recipe that asks for it is built on a machine without a GPU.

Put on PYTHONPATH by the farm for recipes with `assume_cuda: true`, never for a proof. It waits for torch.cuda to be
imported and replaces that one answer, because many a setup.py decides by it whether to compile its CUDA sources.
Runs under every Python a recipe may be built with, so it keeps to Python 3.8.
"""

import importlib.abc
import importlib.machinery
import sys
from types import ModuleType
from typing import Optional, Sequence  # collections.abc.Sequence takes no [str] before Python 3.9


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
            module.is_available = lambda: True  # type: ignore[attr-defined]

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, _AssumeCuda())
