"""Whether an exception shows a mistake in cases.py, and in which line. Needs no torch."""

from __future__ import annotations

import re
import sys
import traceback
from pathlib import Path

_OF_IMPORT = re.compile(r"No module named|cannot import name")
_OF_CASE = re.compile(r"\b(Case\.__init__|Make\.\w+)\(\)")


def is_mistake(error: BaseException | None, root: Path) -> bool:
    """Whether the code of cases.py itself is wrong, such as an unknown name.

    Any other exception, such as a RuntimeError of an op that cases.py calls, may be the fault of the extension, unless
    the judge raises it.
    """
    if isinstance(error, SyntaxError):
        return Path(error.filename or "").is_relative_to(root)
    if error is None:
        return False
    files = [Path(frame.filename) for frame in traceback.extract_tb(error.__traceback__)]
    files = [file for file in files if not str(file).startswith("<frozen importlib")]
    torch = Path(getattr(sys.modules.get("torch"), "__file__", None) or "/nonexistent/torch").parent
    while files and isinstance(error, AttributeError) and files[-1].is_relative_to(torch):
        files.pop()  # torch.NAME and torch.ops.NAMESPACE.NAME of an unknown name raise inside torch
    if not files or not files[-1].is_relative_to(root):
        return False
    if isinstance(error, ImportError):
        return bool(_OF_IMPORT.search(str(error)))  # and not a library that cannot be loaded
    if isinstance(error, (TypeError, ValueError)):
        return files[-1] == root / "builder" / "gate" / "case.py" or bool(_OF_CASE.search(str(error)))
    return isinstance(error, (NameError, AttributeError))


def line_of(error: BaseException | None, root: Path) -> str:
    """Return the innermost place in cases.py or its references, such as ` (cases.py, line 3)`, or an empty string."""
    for frame in reversed(traceback.extract_tb(error.__traceback__) if error else []):
        file = Path(frame.filename)
        if file.is_relative_to(root) and not file.is_relative_to(root / "builder"):
            return f" ({file.relative_to(root)}, line {frame.lineno})"
    return ""
