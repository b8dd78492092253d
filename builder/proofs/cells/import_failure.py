"""Why an import failed: the exception that the user sees, its cause, and what to change."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from builder.diagnosis.known_errors import reports
from builder.wheelfile.driver import is_driver_library

#: What names the cause, wherever it is in a long message.
_CAUSES = ("no-library", "undefined-symbol", "no-module", "bad-library")
#: Libraries that importing torch loads: torch's own, and those of CUDA that torch depends on. The driver's is not one.
_LOADED_BY_TORCH = re.compile(r"lib(?:c10|torch|shm|cu|nv|nccl)[\w-]*\.so[.\d]*")
_MOST = 300  # characters of one message


@dataclass(frozen=True)
class RaisedImport:
    """An import that raised an exception, as the program of the import check reports it."""

    #: The module of the recipe whose import failed.
    module: str
    #: Type and message of the exception, then of its cause, and so on.
    chain: tuple[tuple[str, str], ...]

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> RaisedImport | None:
        """Read what the program printed; None for anything else."""
        try:
            chain = tuple((str(kind), str(text)) for kind, text in data["chain"])
            return cls(str(data["module"]), chain) if chain else None
        except (KeyError, TypeError, ValueError):
            return None

    def sentence(self) -> str:
        """The exception, and the line that names its cause if the exception does not."""
        shown = _headline(*self.chain[0])
        cause = self._cause()
        return f"import of {self.module} failed: {shown}" + (f"; the cause: {cause}" if cause not in shown else "")

    def _cause(self) -> str:
        """The first line that names a missing library, symbol or module, from the innermost exception outwards."""
        for _, text in reversed(self.chain):
            for line in text.splitlines():
                if any(reports(name, line) for name in _CAUSES):
                    return line.strip()[:_MOST]
        return _headline(*self.chain[-1])

    def hints(self, imports: Sequence[str]) -> list[str]:
        """What to change; `imports` are the modules of the recipe."""
        cause = self._cause()
        own = {name.partition(".")[0] for name in imports}
        if missing := reports("no-module", cause):
            name = missing["module"].partition(".")[0]
            if name in own:
                module = missing["module"]
                return [f"the wheel has no module {module}: add it to `packages` or `ext_modules` of its setup.py"]
            return [
                f"add the package that provides `{name}` to `install_requires` in the extension's setup.py, or to"
                " `dependencies` in its pyproject.toml",
                f"add `{name}` to `requires` in the recipe: buildfarm then adds the requirement to the wheel",
            ]
        lacking = reports("no-library", cause)
        if lacking and is_driver_library(lacking["library"]):
            return ["install NVIDIA's driver, or run the import on a machine that has it"]
        if lacking and _LOADED_BY_TORCH.fullmatch(lacking["library"]):
            return needs_torch_first(lacking["library"], self.module)
        return []


def needs_torch_first(library: str, module: str) -> list[str]:
    """What to change if a module needs a library that only an earlier import of torch loads."""
    package = module.partition(".")[0]
    return [
        f"importing torch loads {library}: add `import torch` at the top of {package}/__init__.py",
        "if users must import torch before this package, add `needs_first: [torch]` to the recipe",
    ]


def _headline(kind: str, text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"{kind}: {lines[0][:_MOST]}" if lines else kind
