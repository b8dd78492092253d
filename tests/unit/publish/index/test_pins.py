"""`resolve --write`: what is in a pyproject.toml and a constraints file afterwards, and which files are refused."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from builder.errors import UsageError
from builder.matrix.axes import Cuda
from builder.publish.index.objects import Folder
from builder.publish.index.pins.constraints import pin_constraints
from builder.publish.index.pins.pins import Pins
from builder.publish.index.pins.uv_project import pin_project
from builder.publish.index.repository import Repository
from tests.unit.publish.index.conftest import Run
from tests.unit.publish.index.make import ready

MARKER = "sys_platform == 'linux' and platform_machine == 'x86_64'"
PINS = Pins(
    project="my-ext",
    version=Version("1.0+cu126.torch211"),
    path="cu126",
    index="https://user:secret@wheels.example/cu126/",
    wheel="https://user:secret@wheels.example/files/my_ext-1.0-py3-none-any.whl#sha256=12ab",
    torch=Requirement("torch==2.11.0+cu126"),
    cuda=Cuda(12, 6),
    torch_index="https://torch.example/whl/cu126",
    machine="x86_64",
)
#: The same with the torch of the default index.
DEFAULT = replace(
    PINS,
    version=Version("1.0+cu130.torch211"),
    path="cu130",
    index="https://wheels.example/cu130/",
    torch=Requirement("torch==2.11.0"),
    torch_index="",
    cuda=Cuda(13, 0),
)
PROJECT = """\
# our model
[project]
name = "model"
version = "1"
dependencies = [
    "numpy",  # arrays
    "torch>=2.5",  # any
    "My_Ext[vis]==0.9",
]

[tool.ruff]
line-length = 100  # wide

[tool.uv.sources]
other = { index = "theirs" }

[[tool.uv.index]]
name = "theirs"
url = "https://other.example/simple"

[tool.mypy]
strict = true
"""


def test_a_project_gets_versions_indexes_and_sources() -> None:
    new = pin_project(PROJECT, PINS, "pyproject.toml")
    data = tomllib.loads(new)
    assert data["project"]["dependencies"] == [
        "numpy",
        "torch>=2.5",
        f"my-ext[vis]==1.0+cu126.torch211 ; {MARKER}",
        f"torch==2.11.0+cu126 ; {MARKER}",
    ]
    assert data["tool"]["uv"]["index"] == [
        {"name": "theirs", "url": "https://other.example/simple"},
        {"name": "buildfarm-cu126", "url": "https://wheels.example/cu126/", "explicit": True},
        {"name": "pytorch-cu126", "url": "https://torch.example/whl/cu126", "explicit": True},
    ]
    assert data["tool"]["uv"]["sources"] == {
        "other": {"index": "theirs"},
        "my-ext": {"index": "buildfarm-cu126"},
        "torch": {"index": "pytorch-cu126", "marker": MARKER},
    }
    assert set(PROJECT.splitlines()) - set(new.splitlines()) == {'    "My_Ext[vis]==0.9",'}
    assert "secret" not in new


@pytest.mark.parametrize("first", [PINS, DEFAULT])
@pytest.mark.parametrize("text", [PROJECT, '[project]\nname = "a"\n', '[project]\nname = "a"\ndependencies = []\n'])
def test_a_second_time_changes_nothing(text: str, first: Pins) -> None:
    once = pin_project(text, first, "")
    assert pin_project(once, first, "") == once


def test_a_different_cuda_replaces_its_own_entries() -> None:
    there = pin_project(pin_project(PROJECT, PINS, ""), DEFAULT, "")
    data = tomllib.loads(there)
    assert data["project"]["dependencies"][-2:] == [
        f"my-ext[vis]==1.0+cu130.torch211 ; {MARKER}",
        f"torch==2.11.0 ; {MARKER}",
    ]
    assert data["tool"]["uv"]["sources"] == {"other": {"index": "theirs"}, "my-ext": {"index": "buildfarm-cu130"}}
    back = tomllib.loads(pin_project(there, PINS, ""))["tool"]["uv"]["sources"]
    assert back["torch"] == {"index": "pytorch-cu126", "marker": MARKER}


def test_an_index_of_the_same_url_keeps_its_name() -> None:
    mine = '[[tool.uv.index]]\nname = "mine"\nurl = "https://wheels.example/cu126"\n'
    data = tomllib.loads(pin_project(PROJECT.replace("[tool.mypy]", f"{mine}\n[tool.mypy]"), PINS, ""))["tool"]["uv"]
    assert data["sources"]["my-ext"] == {"index": "mine"}
    assert [index["name"] for index in data["index"]] == ["theirs", "mine", "pytorch-cu126"]


def test_an_index_of_the_same_name_gets_the_new_url() -> None:
    moved = replace(PINS, index="https://new.example/cu126/")
    data = tomllib.loads(pin_project(pin_project(PROJECT, PINS, ""), moved, ""))["tool"]["uv"]
    assert [index["url"] for index in data["index"]][1:2] == ["https://new.example/cu126/"]


def test_the_torch_of_other_machines_stays() -> None:
    sources = "torch = [{ index = 'cpu', marker = \"sys_platform == 'darwin'\" }, { index = 'old' }]\n"
    text = PROJECT.replace('other = { index = "theirs" }\n', sources)
    darwin = {"index": "cpu", "marker": "sys_platform == 'darwin'"}
    assert tomllib.loads(pin_project(text, PINS, ""))["tool"]["uv"]["sources"]["torch"] == [
        darwin,
        {"index": "pytorch-cu126", "marker": MARKER},
    ]
    assert tomllib.loads(pin_project(text, DEFAULT, ""))["tool"]["uv"]["sources"]["torch"] == [darwin, {"index": "old"}]


def test_inline_tables_can_be_changed() -> None:
    text = (
        '[project]\ndependencies = []\n[tool.uv]\nsources = { a = { path = "a" } }\nindex = [{ url = "https://a" }]\n'
    )
    data = tomllib.loads(pin_project(text, PINS, ""))["tool"]["uv"]
    assert list(data["sources"]) == ["a", "my-ext", "torch"]
    assert [index.get("name") for index in data["index"]] == [None, "buildfarm-cu126", "pytorch-cu126"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[project\n", "this file is not valid TOML"),
        ("[tool.uv]\n", "the file has no [project] table"),
        ("project = 3\n", "a value of [project] or [tool.uv] has a type that uv does not accept"),
        ('[project]\ndependencies = "numpy"\n', "a value of [project] or [tool.uv] has a type"),
        ("[project]\n[tool]\nuv = []\n", "a value of [project] or [tool.uv] has a type"),
        ('[project]\n[tool.uv]\nindex = ["a"]\n', "a value of [project] or [tool.uv] has a type"),
        ('[project]\n[tool.uv.sources]\ntorch = "a"\n', "a value of [project] or [tool.uv] has a type"),
        (f'{PROJECT}[[tool.uv.index]]\nurl = "https://b"\n', "the tables of [tool.uv] are in different places"),
        ('[project]\ndynamic = ["dependencies"]\n', "the dependencies of this project are dynamic"),
    ],
)
def test_a_project_that_cannot_be_changed_is_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(UsageError) as error:
        pin_project(text, PINS, "pyproject.toml")
    assert error.value.sentence.startswith(sentence)


def test_constraints_keep_other_lines() -> None:
    old = """# ours
--extra-index-url https://a.example/
numpy<3  # old
My.Ext>=0.5 # why
my-ext<9
torch>=2; os_name=='nt'
"""
    new = pin_constraints(old, PINS)
    assert new.splitlines() == [
        "# ours",
        "--extra-index-url https://a.example/",
        "--extra-index-url https://wheels.example/cu126/",
        "--extra-index-url https://torch.example/whl/cu126",
        "numpy<3  # old",
        "my-ext==1.0+cu126.torch211",
        "torch>=2; os_name=='nt'",
        "torch==2.11.0+cu126",
    ]
    assert pin_constraints(new, PINS) == new


def test_a_version_without_a_local_part_is_pinned_by_its_file() -> None:
    lines = pin_constraints("", replace(PINS, version=Version("1.0"))).splitlines()
    assert "my-ext @ https://wheels.example/files/my_ext-1.0-py3-none-any.whl#sha256=12ab" in lines


@pytest.fixture
def words(tmp_path: Path) -> list[object]:
    Repository(Folder(tmp_path / "index")).add(ready(tmp_path, version="1.0+cu130"))
    return ["resolve", "my_ext", "--index", tmp_path / "index", "--cuda", "13.0", "--python", "3.12"]


def test_nothing_is_written_without_a_wheel(tmp_path: Path, run: Run, words: list[object]) -> None:
    file = tmp_path / "constraints.txt"
    code, out, _ = run(*words[:5], "12.4", "--torch", "2.6", "--python", "3.11", "--write", file)
    assert (code, file.exists()) == (1, False)
    assert "it is for cu130, not cu124" in out


def test_the_command_writes_and_names_the_next_command(tmp_path: Path, run: Run, words: list[object]) -> None:
    file = tmp_path / "pyproject.toml"
    file.write_text(PROJECT)
    code, out, err = run(*words, "--torch", "2.11", "--write", file)
    assert code == 0, err
    command = f"uv sync --python 3.12 --project {tmp_path}"
    assert out.splitlines()[1:] == [f"{file} has the versions and the index", "", command]
    assert "my-ext[vis]==1.0+cu130" in file.read_text()
    before = file.stat().st_mtime_ns
    assert run(*words, "--torch", "2.11", "--write", file)[0] == 0
    assert file.stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("pins.txt", None, "the name must be pyproject.toml, constraints.txt, requirements.txt or pylock.toml"),
        ("pyproject.toml", None, "there is no such file"),
        ("pyproject.toml", b"\xff", "this file is not UTF-8 text"),
        ("constraints.txt", b"\xff", "this file is not UTF-8 text"),
        ("requirements.txt", b"numpy\n", "did not write this file, and a lock would replace all of it"),
        ("none/constraints.txt", None, "there is no such folder"),
    ],
)
def test_a_refused_file_is_one_sentence(
    tmp_path: Path, run: Run, words: list[object], name: str, text: bytes | None, sentence: str
) -> None:
    file = tmp_path / name
    if text is not None:
        file.write_bytes(text)
    code, out, err = run(*words, "--torch", "2.11", "--write", file)
    assert (code, out) == (2, "")
    assert sentence in " ".join(err.split())
    assert (file.read_bytes() if file.exists() else None) == text


def test_a_read_only_file_stays(tmp_path: Path, run: Run, words: list[object]) -> None:
    file = tmp_path / "pyproject.toml"
    file.write_text(PROJECT)
    file.chmod(0o444)
    code, _, err = run(*words, "--torch", "2.11", "--write", file)
    assert (code, file.read_text()) == (2, PROJECT)
    assert "this file is read-only" in err
