"""Makes torch.cuda.is_available() return True while a recipe is built on a machine without a GPU.

buildfarm puts this folder on PYTHONPATH for recipes with `assume_cuda: true`, never for proofs. Many setup.py scripts
call this function to decide whether to compile CUDA sources. It replaces the function when torch.cuda is imported.
It must run under every Python that builds a recipe, so it uses only Python 3.8 syntax.
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
