"""`buildfarm init`: the files of a new project."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from builder.commands.init.init import InitOptions, run_init
from builder.errors import UsageError
from builder.matrix.config import Selection
from builder.matrix.load import read_plan
from tests.conftest import ROOT

SELECT = Selection(torch=("2.11",), cuda=("13.0",), python=("3.12",))
TUTORIAL = re.compile(r'^```\w+ title="extensions/axpby/([^"]+)"\n(.*?)^```$', re.M | re.S)


def start(folder: Path, name: str | None = None) -> list[str]:
    return run_init(InitOptions(folder, name, SELECT)).extension.notes


def without_comments(text: str) -> str:
    return re.sub(r"^//.*\n", "", text, flags=re.M)


def test_empty_folder_gets_the_extension_of_the_tutorial(tmp_path: Path) -> None:
    """The tutorial's test compiles these files and runs their cases."""
    start(tmp_path / "new folder", "axpby")
    shown = dict(TUTORIAL.findall((ROOT / "docs" / "tutorial.md").read_text()))
    for path in ("csrc/axpby.cpp", "csrc/axpby_cuda.cu"):
        assert without_comments((tmp_path / "new folder" / path).read_text()) == shown[path]
    assert shown["cases.py"] in (tmp_path / "new folder" / "cases.py").read_text()
    assert "register_autograd" in (tmp_path / "new folder" / "axpby" / "__init__.py").read_text()
    _, recipes, plan = read_plan(tmp_path / "new folder" / "matrix.yaml", Selection())
    assert [str(build) for build in plan.builds] == ["axpby-0.1.0-cpython-torch2.11.0-cu130-cp312"]
    assert recipes["axpby"].cases


def test_setup_py_names_existing_files(tmp_path: Path) -> None:
    start(tmp_path, "ops")
    named = re.findall(r'"(csrc/[^"]+)"', (tmp_path / "setup.py").read_text())
    assert len(named) == 2
    assert all((tmp_path / name).is_file() for name in named)


@pytest.mark.parametrize(
    ("code", "note"),
    [
        ("__global__ void k(float* y, int n) {}", "op torch.ops.mine.k(Tensor(a!) y, int n) -> ()"),
        ("at::Tensor f(at::Tensor x) { return x; }", "op torch.ops.mine.f(Tensor x) -> Tensor"),
        ("PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {}", "mine.cu has a pybind11 module, which becomes mine._C"),
        ("PYBIND11_MODULE(backend, m) {}", "mine.cu has a pybind11 module, which becomes mine.backend"),
        ("TORCH_LIBRARY(space, m) {}", "mine.cu registers ops in the namespace space"),
    ],
)
def test_cuda_file_of_the_user_is_wrapped_and_not_changed(tmp_path: Path, code: str, note: str) -> None:
    (tmp_path / "mine.cu").write_text(code)
    assert start(tmp_path)[0] == note
    assert (tmp_path / "mine.cu").read_text() == code
    compile((tmp_path / "mine" / "__init__.py").read_text(), "mine", "exec")
    compile((tmp_path / "setup.py").read_text(), "setup.py", "exec")
    _, _, plan = read_plan(tmp_path / "matrix.yaml", Selection())
    assert len(plan.builds) == 1


def test_no_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "setup.py").write_text("mine")
    with pytest.raises(UsageError, match=r"already has setup.py"):
        start(tmp_path, "ops")
    assert [path.name for path in tmp_path.iterdir()] == ["setup.py"]


@pytest.mark.parametrize(
    ("files", "name", "sentence"),
    [
        (["a.cu", "b.cu"], "ops", "has 2 .cu files"),
        (["a.cu"], "ops", "no kernel and no function"),
        ([], "my-ops", "'my-ops' cannot be the name"),
        ([], "torch", "'torch' cannot be the name"),
        ([], "class", "'class' cannot be the name"),
    ],
)
def test_what_init_refuses(tmp_path: Path, files: list[str], name: str, sentence: str) -> None:
    for file in files:
        (tmp_path / file).touch()
    with pytest.raises(UsageError, match=sentence):
        start(tmp_path, name)
    assert sorted(path.name for path in tmp_path.iterdir()) == files
