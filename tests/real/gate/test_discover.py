"""Which ops of Python modules belong to the extension: those that its own modules define, with real torch."""

import json
from pathlib import Path

import pytest

from tests.conftest import ROOT, run
from tests.fixtures import gate_env

pytestmark = [pytest.mark.network, pytest.mark.slow]

DEPENDENCY = """\
import torch

@torch.library.custom_op("helper::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2

def register(name, function):
    torch.library.custom_op(name, function, mutates_args=())
"""
EXTENSION = """\
import helper
import torch

@torch.library.custom_op("mine::thrice", mutates_args=())
def thrice(x: torch.Tensor) -> torch.Tensor:
    return x * 3

def four(x: torch.Tensor) -> torch.Tensor:
    return x * 4

helper.register("mine::four", four)
torch.library.define("elsewhere::five", "(Tensor x) -> Tensor")
"""
PROGRAM = """\
import json, sys
sys.path[:0] = sys.argv[1:]
from builder.gate.discover import RegistrationRecorder
recorder = RegistrationRecorder(["mine"])
with recorder:
    import mine
import torch
torch.library.define("later::six", "(Tensor x) -> Tensor")
print(json.dumps(recorder.own()[0]))
"""


def test_ops_of_a_dependency_are_not_those_of_the_extension(store: Path, tmp_path: Path) -> None:
    environment = gate_env.torch_environment(store, "2.11.0", "3.12", tmp_path / "log")
    for name, text in {"helper": DEPENDENCY, "mine": EXTENSION}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(text)
    ran = run(environment.interpreter, "-c", PROGRAM, ROOT, tmp_path).ok()
    assert json.loads(ran.out) == ["elsewhere::five", "mine::four", "mine::thrice"]


PLAIN = """\
import json, sys
sys.path[:0] = sys.argv[1:]
import torch
from builder.gate.case import Case
from builder.gate.checks.values import compare
from builder.gate.discover import _without_tensors
from builder.gate.draft.guesses import _of_docstring, first_guesses

def documented(text):
    def function(): ...
    function.__doc__ = text
    return function

right = torch.tensor([4.429872501, 1.0], dtype=torch.float64)
case = Case("a::b", lambda make: [])
print(json.dumps([
    [_without_tensors(documented(text)) for text in json.loads(TEXTS)],
    compare(right.float().double(), right, case, torch.float64),
    compare(right + 1, right, case, torch.float64),
    first_guesses(_of_docstring(documented("f(x: torch.Tensor, kind: mine.Kind) -> torch.Tensor")).parameters),
]))
"""


def test_numbers_are_no_ops_and_a_rounding_to_float32_is_named(store: Path, tmp_path: Path) -> None:
    """The docstrings are those of pybind11 2 and 3."""
    environment = gate_env.torch_environment(store, "2.11.0", "3.12", tmp_path / "log")
    texts = {
        "knn_check_version(arg0: int, arg1: int, arg2: int) -> bool\n": True,
        "f(n: typing.SupportsInt | typing.SupportsIndex, x: float = 1.0) -> None\n": True,
        "version() -> str\n": True,
        "f(x: torch.Tensor, n: int) -> None\n": False,
        "f(n: int) -> torch.Tensor\n": False,
        "f(n: int) -> object\n": False,
        "f(*args, **kwargs)\nOverloaded function.\n": False,
        "": False,
    }
    program = f"TEXTS = {json.dumps(list(texts))!r}\n{PLAIN}"
    ran = run(environment.interpreter, "-c", program, ROOT, tmp_path).ok()
    plain, rounded, wrong, guesses = json.loads(ran.out)
    assert dict(zip(texts, plain, strict=True)) == texts
    assert rounded.startswith("the result is 4.42987251282 at [0], expected 4.429872501; 1 of 2 elements differ")
    assert rounded.partition("; so small a difference is a rounding to float32: ")[2].endswith(
        "`double`, round it in the reference too (`float(torch.tensor(x, dtype=torch.float32))`), or set `tolerances`"
    )
    assert "float32" not in wrong
    assert len(guesses) == 2, "a parameter of an unknown type, such as an enum, is tried too"
