"""Which exceptions show a mistake in cases.py, and in which line."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from types import ModuleType

import pytest

from builder.gate.imports.cases_fault import is_mistake, line_of

CASE = """\
def __getattr__(name):
    raise AttributeError(name)
class Case:
    def __init__(self, op):
        pass
class Make:
    def randn(self):
        raise TypeError("'str' is no size")
def case(edge):
    raise ValueError(f"edge is {edge!r}")
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a packed gate, an extension beside it, and a stand-in for torch."""
    root, site = tmp_path / "gate", tmp_path / "site"
    for file, text in {
        root / "builder" / "gate" / "case.py": CASE,
        root / "refs.py": "def wrong():\n    return undefined\n",
        site / "extension" / "__init__.py": "def call():\n    return undefined\n",
        site / "extension" / "broken.py": "import missing_requirement\n",
        site / "faketorch" / "__init__.py": "def __getattr__(name):\n    raise AttributeError(name)\n",
    }.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    for folder in (root, site, root / "builder" / "gate"):
        monkeypatch.syspath_prepend(str(folder))
    torch = ModuleType("torch")
    torch.__file__ = str(site / "faketorch" / "__init__.py")
    monkeypatch.setitem(sys.modules, "torch", torch)
    for name in ("case", "refs", "extension", "extension.broken", "faketorch"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return root


@pytest.mark.parametrize(
    ("code", "mistake", "line"),
    [
        ("CASES = [\n", True, ""),
        ("import os\n\nCASES = [undefined]\n", True, " (cases.py, line 3)"),
        ("import refs\nrefs.wrong()\n", True, " (refs.py, line 2)"),
        ("import extenson\n", True, " (cases.py, line 1)"),
        ("from extension import gone\n", True, " (cases.py, line 1)"),
        ("import faketorch\nfaketorch.float33\n", True, " (cases.py, line 2)"),
        ("import case\ncase.Case(opp=1)\n", True, " (cases.py, line 2)"),
        ("import case\ncase.case('emty')\n", True, " (cases.py, line 2)"),
        # The extension may be at fault:
        ("import extension\nextension.call()\n", False, " (cases.py, line 2)"),
        ("import extension.broken\n", False, " (cases.py, line 1)"),
        ("raise ImportError('lib.so: undefined symbol: f')\n", False, " (cases.py, line 1)"),
        ("raise RuntimeError('the op failed')\n", False, " (cases.py, line 1)"),
        ("raise TypeError('incompatible function arguments')\n", False, " (cases.py, line 1)"),
    ],
)
def test_a_mistake_is_an_error_of_the_code_of_cases_py(root: Path, code: str, mistake: bool, line: str) -> None:
    (root / "cases.py").write_text(code)
    with pytest.raises(Exception) as caught:  # noqa: PT011 (each code raises another one)
        runpy.run_path(str(root / "cases.py"))
    assert is_mistake(caught.value, root) is mistake
    assert line_of(caught.value, root) == line
