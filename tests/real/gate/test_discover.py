"""Which ops of Python modules belong to the extension: those that its own modules define, with real torch."""

from __future__ import annotations

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
print(json.dumps(recorder.own()))
"""


def test_ops_of_a_dependency_are_not_those_of_the_extension(store: Path, tmp_path: Path) -> None:
    environment = gate_env.torch_environment(store, "2.11.0", "3.12", tmp_path / "log")
    for name, text in {"helper": DEPENDENCY, "mine": EXTENSION}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(text)
    ran = run(environment.interpreter, "-c", PROGRAM, ROOT, tmp_path)
    assert ran.code == 0, ran.all
    assert json.loads(ran.out) == ["elsewhere::five", "mine::four", "mine::thrice"]
