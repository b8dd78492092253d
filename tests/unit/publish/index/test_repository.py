"""The index folder: publish, conflicts, concurrent and killed publishers, yanks."""

import json
import sys
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from builder.commands.index.manage import find_wheels
from builder.errors import Code, UsageError
from builder.publish.index.new_wheel import new_wheel
from builder.publish.index.objects import Folder
from builder.publish.index.pages import Entry, FarmFacts, paths_of
from builder.publish.index.repository import ConflictError, NewWheel, Repository
from tests.conftest import coded
from tests.fixtures.killed import together
from tests.refused import refused
from tests.unit.loopback import pure_wheel
from tests.unit.publish.index.make import CELL, checked, ready


def listed(repository: Repository, path: str, project: str = "my-ext") -> list[str]:
    try:
        page = json.loads(repository.objects.read(f"{path}/{project}/index.json"))
    except FileNotFoundError:
        return []
    return [file["filename"] for file in page["files"]]


def test_a_wheel_is_listed_under_its_cuda_variants(repository: Repository, tmp_path: Path) -> None:
    new = ready(tmp_path, version="1.0+cu130")
    assert repository.add(new)
    assert listed(repository, "simple") == listed(repository, "cu130") == [new.wheel.name]
    assert repository.paths() == ["cu130", "simple", "cu130/torch2.11"]
    (entry,) = repository.entries("my-ext")
    assert entry.farm
    assert entry.farm.cells == {CELL: "cpu"}
    assert repository.objects.read(entry.path) == new.wheel.read_bytes()
    assert repository.objects.read(entry.farm.proofs) == new.attached[".proofs.json"]
    assert repository.objects.names("pending") == []


def test_wheels_without_proofs_are_listed_by_their_local_version(repository: Repository, tmp_path: Path) -> None:
    for version in ("1.0+pt22cu121", "1.0"):
        repository.add(ready(tmp_path, version=version, proven=False))
    assert repository.paths() == ["cpu", "cu121", "simple", "cu121/torch2.2"]
    assert listed(repository, "cu121") == ["my_ext-1.0+pt22cu121-py3-none-any.whl"]
    assert listed(repository, "cpu") == ["my_ext-1.0-py3-none-any.whl"]
    assert len(listed(repository, "simple")) == 2


def test_an_untested_wheel_of_a_platform_is_in_no_path_of_a_cuda(repository: Repository, tmp_path: Path) -> None:
    wheel = pure_wheel(tmp_path, "ops", "1.0", tag="cp312-cp312-manylinux_2_28_x86_64")
    repository.add(new_wheel(wheel, []))
    assert repository.paths() == ["simple"]


def publish_claim(repository: Repository, folder: Path, version: str, *requires: str) -> str:
    """Publish an untested wheel with these requirements; returns its file name."""
    wheel = pure_wheel(folder, "my_ext", version, requires=requires)
    repository.add(new_wheel(wheel, []))
    return wheel.name


def test_the_path_of_a_torch_has_the_wheels_that_admit_it(repository: Repository, tmp_path: Path) -> None:
    named = publish_claim(repository, tmp_path, "1.0+cu130.torch2.11", "torch==2.11.*")
    earlier = publish_claim(repository, tmp_path, "0.9+cu130.torch211", "torch")
    other = publish_claim(repository, tmp_path, "1.0+cu130.torch2.9", "torch==2.9.*")
    stable = publish_claim(repository, tmp_path, "1.1+cu13", "torch>=2.12", "torchdata", 'torch==1.0; extra == "old"')
    pinned = publish_claim(repository, tmp_path, "1.2+cu130", "torch==2.10.0+cu130")
    free = publish_claim(repository, tmp_path, "1.3+cu130")
    torches = ("2.9", "2.10", "2.11", "2.12", "2.15")
    assert {series: listed(repository, f"cu130/torch{series}") for series in torches} == {
        "2.9": [other, free],
        "2.10": [pinned, free],
        "2.11": [earlier, named, free],
        "2.12": [free],
        "2.15": [free],
    }
    assert listed(repository, "cu13/torch2.11") == []
    assert listed(repository, "cu13/torch2.12") == [stable]
    assert "torch2.11" not in repository.projects_of("cu130")
    page = repository.objects.read("cu130/torch2.11/my-ext/index.html").decode()
    (entry,) = [entry for entry in repository.entries("my-ext") if entry.filename == free]
    assert f'href="../../../{entry.path.replace("+", "%2B")}#sha256=' in page
    assert json.loads(repository.objects.read("cu130/torch2.11/index.json"))["projects"] == [{"name": "my-ext"}]
    assert checked(repository).faults == ()


def test_records_of_earlier_versions_are_in_the_paths_that_their_versions_name() -> None:
    def paths(version: str, *cells: str) -> tuple[str, ...]:
        farm = TypeAdapter(FarmFacts).validate_python(FarmFacts(("cu130",), dict.fromkeys(cells, "cpu")).to_json())
        return paths_of(Entry(f"my_ext-{version}-py3-none-any.whl", "", "", 1, "", "", "", farm=farm))

    assert paths("1.0+cu130.torch211") == ("cu130", "cu130/torch2.11")
    assert paths("1.0+cu130") == ("cu130",)
    assert paths("1.0+cu13", CELL, "torch2.12.0-cu132-cp312") == ("cu130", "cu130/torch2.11")


def test_pages_of_a_torch_go_with_their_last_wheel(repository: Repository, tmp_path: Path) -> None:
    first = publish_claim(repository, tmp_path, "1.0+cu130.torch2.11")
    second = publish_claim(repository, tmp_path, "1.0+cu126.torch2.9")
    other = ready(tmp_path, "other", "1.0+cu130.torch2.11", proven=False)
    repository.add(other)
    repository.remove(second)
    assert repository.projects_of("cu126/torch2.9") == []
    assert json.loads(repository.objects.read("cu126/torch2.9/index.json"))["projects"] == []
    repository.remove(first)
    assert repository.projects_of("cu130/torch2.11") == ["other"]
    assert json.loads(repository.objects.read("cu130/torch2.11/index.json"))["projects"] == [{"name": "other"}]
    assert checked(repository).faults == ()


def test_a_killed_change_leaves_no_page_of_a_torch(repository: Repository, tmp_path: Path) -> None:
    first = publish_claim(repository, tmp_path, "1.0+cu130.torch2.11")
    publish_claim(repository, tmp_path, "1.0+cu126.torch2.9")
    (entry,) = [entry for entry in repository.entries("my-ext") if entry.filename == first]
    repository.objects.delete(f"records/my-ext/{entry.filename}.json")
    repository.objects.write("pending/my-ext~1", b"")
    assert repository.finish_interrupted() == ["my-ext"]
    assert not repository.objects.exists("cu130/torch2.11/my-ext/index.json")
    assert repository.projects_of("cu126/torch2.9") == ["my-ext"]


def test_a_published_file_never_changes(repository: Repository, tmp_path: Path) -> None:
    new = ready(tmp_path / "a")
    assert repository.add(new)
    before = {path: path.read_bytes() for path in (tmp_path / "index").rglob("*.*") if path.is_file()}
    assert not repository.add(new)
    with refused(Code.PUBLISHED_FILE_DIFFERS):
        repository.add(ready(tmp_path / "b", text="other"))
    assert {path: path.read_bytes() for path in (tmp_path / "index").rglob("*.*") if path.is_file()} == before


def test_capitals_of_a_local_version_are_no_other_version(repository: Repository, tmp_path: Path) -> None:
    upper, lower = (ready(tmp_path, version=f"1.0+cu130cxx11abi{text}", text=text) for text in ("TRUE", "true"))
    repository.add(upper)
    with refused(Code.PUBLISHED_FILE_DIFFERS, "my_ext-1.0+cu130cxx11abiTRUE-"):
        repository.add(lower)
    assert listed(repository, "cu130") == [upper.wheel.name]
    repository.yank(lower.wheel.name, "slow")
    assert repository.entries("my-ext")[0].yanked == "slow"
    assert [entry.filename for entry in find_wheels(repository, "my_ext==1.0+CU130cxx11abitrue")] == [upper.wheel.name]
    repository.yank(lower.wheel.name, None)
    repository.remove(lower.wheel.name)
    assert listed(repository, "cu130") == []


def test_removed_wheels_and_projects_leave_the_pages(repository: Repository, tmp_path: Path) -> None:
    one, other = ready(tmp_path), ready(tmp_path, "other")
    repository.add(one)
    repository.add(other)
    repository.remove(one.wheel.name)
    assert repository.projects() == ["other"]
    for page in ("simple/index.html", "index.html"):
        assert "my-ext" not in repository.objects.read(page).decode()
    assert repository.objects.folders("projects") == ["other"]
    assert not list((tmp_path / "index").rglob("my_ext*"))
    assert listed(repository, "simple", "other") == [other.wheel.name]


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x", "a/.hidden"])
def test_no_name_leads_out_of_the_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, check=coded(Code.PATH_NOT_USABLE)):
        Folder(tmp_path).write(name, b"")


def _publish_some(root: Path, wheels: Path, number: int) -> None:
    repository = Repository(Folder(root))
    for index in range(5):
        repository.add(ready(wheels / str(number), version=f"{number}.{index}"))


def test_concurrent_publishers_lose_nothing(repository: Repository, tmp_path: Path) -> None:
    args = [(tmp_path / "index", tmp_path / "wheels", number) for number in range(6)]
    assert together(_publish_some, args) == [0] * 6
    wanted = sorted(f"my_ext-{number}.{index}-py3-none-any.whl" for number in range(6) for index in range(5))
    assert sorted(listed(repository, "simple")) == sorted(listed(repository, "cu130")) == wanted
    assert repository.objects.names("pending") == []


class Overtaken(Folder):
    """A folder in which another publisher finishes just before the first page is written."""

    def __init__(self, root: Path, other: NewWheel) -> None:
        super().__init__(root)
        self.other: NewWheel | None = other

    def write(self, name: str, data: bytes) -> None:
        if self.other and name.startswith("simple/"):
            other, self.other = self.other, None
            Repository(Folder(self.root)).add(other)
        super().write(name, data)


def test_a_page_from_old_records_is_written_again(tmp_path: Path) -> None:
    one, other = ready(tmp_path, version="1.0"), ready(tmp_path, version="2.0")
    repository = Repository(Overtaken(tmp_path / "index", other))
    repository.add(one)
    assert listed(repository, "simple") == listed(repository, "cu130") == [one.wheel.name, other.wheel.name]


def test_of_two_different_files_of_one_name_one_is_published(repository: Repository, tmp_path: Path) -> None:
    news = [ready(tmp_path / str(number), text=str(number)) for number in range(8)]

    def publish(number: int) -> None:
        try:
            Repository(Folder(tmp_path / "index")).add(news[number])
        except ConflictError:
            sys.exit(7)

    codes = together(publish, [(number,) for number in range(8)])
    assert sorted(codes, key=str) == [0] + [7] * 7
    (entry,) = repository.entries("my-ext")
    assert entry.sha256 == news[codes.index(0)].entry.sha256
