"""`yank`, `unyank` and `index`: by the command line, on a real index folder."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from builder.publish.index.integrity import check_index
from builder.publish.index.objects import Folder
from builder.publish.index.repository import Repository
from tests.unit.publish.index.conftest import Run
from tests.unit.publish.index.make import ready


@pytest.fixture
def index(tmp_path: Path) -> Path:
    repository = Repository(Folder(tmp_path / "index"))
    for version in ("1.0+cu121", "1.0+cu124", "2.0+cu124", "3.0"):
        repository.add(ready(tmp_path, version=version, proven=False))
    return tmp_path / "index"


def test_yank_warns_of_the_wheel_that_is_installed_instead(index: Path, run: Run) -> None:
    code, out, err = run("yank", "my_ext==1.0+cu124", "--index", index, "--reason", "slow")
    assert (code, out) == (0, "yanked my_ext-1.0+cu124-py3-none-any.whl\n")
    assert "installers that use simple/ now get 1.0+cu121 for my-ext==1.0" in " ".join(err.split())
    code, out, err = run("unyank", "my_ext-1.0+cu124-py3-none-any.whl", "--index", index, "--json")
    assert json.loads(out) == {"unyanked": ["my_ext-1.0+cu124-py3-none-any.whl"]}
    assert all(entry.yanked is None for entry in Repository(Folder(index)).entries("my-ext"))


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("my_ext", "pass the file name of a wheel, or NAME==VERSION"),
        ("my_ext==9", "the index has no such wheel"),
        ("x-1.0-py3-none-any.whl", "the index has no such wheel"),
        ("..whl", "..whl"),
    ],
)
def test_unknown_wheels_are_refused(index: Path, run: Run, what: str, said: str) -> None:
    code, _, err = run("yank", what, "--index", index)
    assert code == 2
    assert said in " ".join(err.split())


def test_a_folder_without_an_index_is_refused(tmp_path: Path, run: Run) -> None:
    code, _, err = run("index", "check", tmp_path)
    assert code == 2
    assert "this folder contains no index" in " ".join(err.split())


def test_check_finds_each_damage(index: Path, run: Run) -> None:
    assert run("index", "check", index)[:2] == (0, "checked: 1 project, 4 wheels, 0 faults\n")
    (wheel,) = index.glob("files/*/*/my_ext-3.0-py3-none-any.whl")
    data = wheel.read_bytes()
    wheel.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    (metadata,) = index.glob("files/*/*/my_ext-2.0*.metadata")
    metadata.unlink()
    page = index / "simple" / "my-ext" / "index.json"
    page.write_text(page.read_text().replace('"size":', '"size":1'))
    (index / "simple" / "index.json").write_text("{}")
    code, out, _ = run("index", "check", index, "--json")
    assert code == 1
    faults = json.loads(out)["faults"]
    assert [fault for fault in faults if "my_ext-3.0" in fault and "the content changed" in fault]
    assert [fault for fault in faults if "my_ext-2.0" in fault and "missing" in fault]
    assert len([fault for fault in faults if fault.startswith("simple/my-ext: the page does not agree")]) == 4
    assert [fault for fault in faults if fault.startswith("simple/index.json")]


def test_check_finishes_an_interrupted_change(index: Path, tmp_path: Path, run: Run) -> None:
    class Killed(BaseException):
        pass

    class Stopping(Repository):
        def write_pages(self, project: str) -> None:
            raise Killed(project)

    with pytest.raises(Killed):
        Stopping(Folder(index)).add(ready(tmp_path, version="4.0", proven=False))
    code, out, _ = run("index", "check", index)
    assert (code, out) == (0, "finished the interrupted change of my-ext\nchecked: 1 project, 5 wheels, 0 faults\n")


def test_prune_keeps_the_newest_versions(index: Path, run: Run) -> None:
    left = index / "files" / "ab" / "cd" / "left.whl"
    young = index / "files" / "ab" / "ef" / "young.whl"
    for path in (left, young):
        path.parent.mkdir(parents=True)
        path.write_bytes(b"")
    os.utime(left, (0, 0))
    assert len(check_index(Repository(Folder(index))).unused) == 2
    _, out, _ = run("index", "prune", index, "--keep", 2, "--dry-run")
    assert out.splitlines() == [
        "would delete my_ext-1.0+cu121-py3-none-any.whl",
        "would delete my_ext-1.0+cu124-py3-none-any.whl",
        "would delete files/ab/cd/left.whl",
    ]
    run("index", "prune", index, "--keep", 2)
    assert sorted(str(entry.version) for entry in Repository(Folder(index)).entries("my-ext")) == ["2.0+cu124", "3.0"]
    assert not left.exists()
    assert young.exists()
    assert not (index / "cu121" / "my-ext").exists()


def test_the_status_of_a_project(index: Path, run: Run) -> None:
    assert run("index", "status", index, "My.Ext", "deprecated", "--reason", "use other")[0] == 0
    page = json.loads((index / "simple" / "my-ext" / "index.json").read_bytes())
    assert page["project-status"] == {"status": "deprecated", "reason": "use other"}
    assert run("index", "status", index, "none", "deprecated")[0] == 2


def test_a_new_index_in_a_source_folder_is_no_part_of_the_source(tmp_path: Path, run: Run) -> None:
    wheel = ready(tmp_path, version="1.0+cu130").wheel
    words = ("publish", wheel, "--to", tmp_path / "index", "--store", tmp_path / "store", "--require", "none")
    assert run(*words)[0] == 0
    assert (tmp_path / "index" / ".gitignore").read_text() == "*\n"
    assert check_index(Repository(Folder(tmp_path / "index"))).faults == ()
    (tmp_path / "file").write_text("")
    code, _, err = run(*words[:3], tmp_path / "file" / "index", *words[4:])
    assert code == 2
    assert "name a different folder with `--to DIR`" in " ".join(err.split())
