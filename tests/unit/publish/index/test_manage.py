"""`yank` and `index` by the command line on a real index folder, and what its pages show."""

import errno
import json
import re
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import pytest

from builder.errors import Code
from builder.hashing import sha256_of
from builder.publish.index import objects
from builder.publish.index.new_wheel import new_wheel
from builder.publish.index.objects import Folder, open_objects
from builder.publish.index.pages import Entry, FarmFacts
from builder.publish.index.repository import Repository
from builder.publish.people.people_pages import home_page, project_page
from builder.publish.proof_lines import Gradient
from tests.refused import refused
from tests.unit.conftest import Call
from tests.unit.loopback import pure_wheel
from tests.unit.publish.html_page import Page
from tests.unit.publish.index.make import checked, ready


@pytest.fixture
def index(tmp_path: Path) -> Path:
    repository = Repository(Folder(tmp_path / "index"))
    for version in ("1.0+cu121", "1.0+cu124", "2.0+cu124", "3.0"):
        repository.add(ready(tmp_path, version=version, proven=False))
    return tmp_path / "index"


PAGES = """index.html simple/index.html simple/index.json simple/my-ext/index.html cu124/index.html
    cu124/my-ext/index.html cu124/my-ext/index.json projects/my-ext/index.html"""


@pytest.mark.parametrize("damage", ["", None, "mine"], ids=["empty", "missing", "tampered"])
def test_write_pages_mends_each_page(index: Path, call: Call, damage: str | None) -> None:
    texts = {page: (index / page).read_text() for page in PAGES.split()}
    for folder in ("cu124", "projects", "simple"):
        shutil.copytree(index / folder / "my-ext", index / folder / "ghost")
    for page, text in texts.items():
        if damage is None:
            (index / page).unlink()
        else:
            (index / page).write_text(damage and text.replace("my", damage))
    assert call("index", "write-pages", index)[0] == 0
    assert {page: (index / page).read_text() for page in texts} == texts
    assert not list(index.glob("*/ghost/*"))


def test_check_finishes_an_interrupted_change(index: Path, tmp_path: Path, call: Call) -> None:
    class Killed(BaseException):
        pass

    class Stopping(Repository):
        def write_pages(self, project: str) -> None:
            raise Killed(project)

    with pytest.raises(Killed):
        Stopping(Folder(index)).add(ready(tmp_path, version="4.0", proven=False))
    code, out, _ = call("index", "check", index)
    assert (code, out) == (0, "finished the interrupted change of my-ext\nchecked: 1 project, 5 wheels, 0 faults\n")


def test_a_reason_has_no_control_characters(index: Path, call: Call) -> None:
    words = ("yank", "my_ext==3.0", "--index", index, "--reason")
    for reason in ("two\nlines", "red \x1b[31m", "\x07", "\x9b31m", "\u202e"):
        code, _, err = call(*words, reason)
        assert (code, "\x1b" in err) == (2, False)
        assert not list(index.glob("records/my-ext/*.yank"))
    assert call(*words, "größer als 1 ✓")[0] == 0


def test_the_folder_of_an_index_is_named_in_three_ways(index: Path, call: Call, tmp_path: Path) -> None:
    for place in (index, f"{index.as_uri()}/", f"{index.as_uri()}/simple/"):
        code, out, _ = call("verify", "my_ext==3.0", "--index", place, "--store", tmp_path / "store")
        assert (code, out.split()[0]) == (0, "my_ext-3.0-py3-none-any.whl")
        words = ("--index", place, "--torch", "2.11", "--cuda", "13.0", "--python", "3.12")
        assert call("resolve", "my_ext", *words)[1].startswith("my_ext-3.0-py3-none-any.whl ")
    assert call("index", "check", index.as_uri())[0] == 0


def test_a_new_index_in_a_source_folder_is_no_part_of_the_source(
    tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a folder without a matrix
    wheel = ready(tmp_path, version="1.0+cu130").wheel
    words = ("publish", wheel, "--to", tmp_path / "index", "--store", tmp_path / "store", "--require", "none")
    assert call(*words)[0] == 0
    assert (tmp_path / "index" / ".gitignore").read_text() == "*\n"
    assert checked(Repository(Folder(tmp_path / "index"))).faults == ()
    (tmp_path / "file").write_text("")
    code, _, err = call(*words[:3], tmp_path / "file" / "index", *words[4:])
    assert code == 2
    assert "name a different folder with `--to DIR`" in " ".join(err.split())


@pytest.mark.parametrize(
    "words",
    [
        ("publish", "{wheel}", "--to", "{index}", "--store", "{tmp}/store", "--require", "none"),
        ("token", "add", "{index}", "--name", "ci", "--scope", "read"),
    ],
    ids=lambda words: words[0],
)
def test_a_full_disk_names_the_index(
    index: Path, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    wheel = ready(tmp_path, version="4.0", proven=False).wheel

    def full(source: object, *_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", *((str(source),) if source == wheel else ()))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("shutil.copyfile", full)
    monkeypatch.setattr(objects, "sync", full)
    code, _, err = call(*(word.format(wheel=wheel, index=index, tmp=tmp_path) for word in words))
    assert code == 1
    assert f"error[disk-full]: the disk is full ({index}" in err


def test_prune_survives_files_that_vanish(index: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    unused = index / "files/ab/cd/x-1.0-py3-none-any.whl"
    unused.parent.mkdir(parents=True)
    unused.write_bytes(b"x")
    age = Folder.age

    def vanishing(self: Folder, name: str) -> float:
        (self.root / name).unlink()
        return age(self, name)

    monkeypatch.setattr(Folder, "age", vanishing)
    code, _, err = call("index", "prune", index, "--keep", 9)
    assert (code, err) == (0, "")


def test_a_stray_file_is_no_project(index: Path, tmp_path: Path, call: Call) -> None:
    stray = [
        index / folder / name for folder in ("simple", "cpu", "projects", "records") for name in ("x", "robots.txt")
    ]
    for path in stray:
        path.write_text("User-agent: *\n")
    Repository(Folder(index)).add(ready(tmp_path, version="4.0", proven=False))
    assert call("index", "write-pages", index) == (0, "", "")
    for folder in ("simple", "cpu"):
        page = json.loads((index / folder / "index.json").read_bytes())
        assert page["projects"] == [{"name": "my-ext"}]
    assert "robots" not in (index / "index.html").read_text()
    assert Repository(Folder(index)).projects() == ["my-ext"]
    assert call("index", "check", index)[:2] == (0, "checked: 1 project, 5 wheels, 0 faults\n")
    assert all(path.is_file() for path in stray)


@pytest.mark.parametrize("place", ["https://wheels.example/simple/", "http://wheels.example:8080/", "gs://bucket"])
def test_an_index_behind_a_url_is_not_changed(place: str) -> None:
    with refused(Code.INDEX_NOT_WRITABLE, place):
        open_objects(place)


CELLS = {"torch2.11.0-cu130-cp311": "cpu", "torch2.11.0-cu130-cp312": "gpu", "torch2.12.0-cu132-cp312": "static"}


def index_of(folder: Path, *wheels: Path) -> Path:
    """Publish these wheels in an index; return the folder with its pages."""
    for wheel in wheels:
        Repository(Folder(folder)).add(new_wheel(wheel, []))
    return folder / "simple"


def entry(version: str, cells: dict[str, str], *, yanked: str | None = None) -> Entry:
    name = f"my_ext-{version}-cp310-abi3-manylinux_2_28_x86_64.whl"
    farm = FarmFacts(("cu130", "cu132"), cells, proofs="files/p", archs=("sm_90",))
    return Entry(name, f"files/ab/{name}", "0", 2048, "2026-11-22T20:30:00.000000Z", "", "0", yanked, farm=farm)


def test_the_html_page_follows_the_standards(tmp_path: Path) -> None:
    wheel = pure_wheel(tmp_path, "my_ext", "1.0+cu13", requires_python=">=3.8,<9")
    page = index_of(tmp_path / "index", wheel) / "my-ext" / "index.html"
    links = Page(page.read_text())
    assert {"name": "pypi:repository-version", "content": "1.4"} in links.of("meta")
    (link,) = links.of("a")
    address = urlsplit(urljoin(page.as_uri(), link["href"]))
    assert "+" not in address.path
    published = Path(unquote(address.path))
    assert published.read_bytes() == wheel.read_bytes()
    assert address.fragment == f"sha256={sha256_of(wheel)}"
    assert link["data-core-metadata"] == f"sha256={sha256_of(published.with_name(f'{wheel.name}.metadata'))}"
    assert "data-dist-info-metadata" not in link
    assert link["data-requires-python"] == ">=3.8,<9"
    assert 'data-requires-python="&gt;=3.8,&lt;9"' in page.read_text()
    assert [entry["href"] for entry in Page((tmp_path / "index/simple/index.html").read_text()).of("a")] == ["my-ext/"]


def test_the_json_page_agrees_with_the_html_page(tmp_path: Path) -> None:
    wheels = [
        pure_wheel(tmp_path, "my_ext", version, requires_python=">=3.8") for version in ("1.10", "1.9", "1.9+cu13")
    ]
    simple = index_of(tmp_path / "index", *wheels)
    data = json.loads((simple / "my-ext" / "index.json").read_text())
    assert data["meta"]["api-version"] == "1.4"
    assert (data["name"], data["versions"]) == ("my-ext", ["1.9", "1.9+cu13", "1.10"])
    assert [f"{f['url'].replace('+', '%2B')}#sha256={f['hashes']['sha256']}" for f in data["files"]] == [
        link["href"] for link in Page((simple / "my-ext" / "index.html").read_text()).of("a")
    ]
    newest = data["files"][-1]
    assert (newest["filename"], newest["size"]) == ("my_ext-1.10-py3-none-any.whl", wheels[0].stat().st_size)
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", newest["upload-time"])
    assert newest["requires-python"] == ">=3.8"
    assert json.loads((simple / "index.json").read_text())["projects"] == [{"name": "my-ext"}]


def test_a_page_has_the_levels_and_the_commands_of_each_version() -> None:
    farm = replace(entry("2.0+cu13", CELLS).farm or FarmFacts(), gpus={"torch2.11.0-cu130-cp312": ("sm_80", "sm_90")})
    wheels = [
        entry("1.0+cu130.torch211", {"torch2.11.0-cu130-cp311": "gpu"}),
        replace(entry("2.0+cu13", CELLS), farm=farm),
        entry("2.1rc1+cu13", CELLS),
        entry("0.9+cu13", CELLS, yanked="slow"),
    ]
    texts = Page(project_page("my-ext", wheels).decode()).texts
    headings = [text for text in texts if text.startswith("Version ")]
    assert headings == ["Version 2.0", "Version 1.0", "Version 0.9", "Version 2.1rc1 (pre-release)"]
    paths = [text for text in texts if re.fullmatch(r"cu[\d/.torch]+", text)]
    assert paths == ["cu132", "cu130", "cu130/torch2.11", "cu132", "cu132", "cu130"]
    levels = [(label, cells) for label, cells in pairwise(texts) if cells.startswith("torch2.1")][:3]
    assert levels == [
        ("GPU", "torch2.11.0-cu130-cp312 (sm_80, sm_90)"),
        ("CPU", "torch2.11.0-cu130-cp311"),
        ("static", "torch2.12.0-cu132-cp312"),
    ]
    assert "All wheels of this version are yanked." in texts


def test_the_pages_are_well_formed_and_need_no_other_host() -> None:
    for data in (project_page("my-ext", [entry("1.0+cu13", CELLS)]), home_page(["my-ext", "other"]), home_page([])):
        page = Page(data.decode())
        assert not [url for url in page.all("src") + page.all("href") if "//" in url]


def test_the_page_says_which_ops_lose_gradients() -> None:
    farm = FarmFacts(("cu130",), {}, gradients={"ns::add": "yes, checked", "ns::sub": str(Gradient.LOST)})
    listed = Entry.from_json(replace(entry("1.0+cu130", {}), farm=farm).to_json())
    page = project_page("ops", [listed]).decode()
    assert "gradients: none: the gradients of the inputs are lost (ns::sub); yes, checked (ns::add)" in page


def test_hostile_text_stays_text() -> None:
    data = project_page("my-ext", [entry("1.0+cu13", CELLS, yanked="<script>alert(1)</script>")]).decode()
    assert "<script>alert" not in data
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in data


def test_every_link_of_a_published_wheel_leads_to_a_file(tmp_path: Path) -> None:
    root = tmp_path / "index"
    Repository(Folder(root)).add(ready(tmp_path, version="1.0+cu130"))
    for path in ("index.html", "projects/my-ext/index.html"):
        page = root / path
        for link in Page(page.read_text()).of("a"):
            target = page.parent / link["href"].replace("%2B", "+")
            assert (target / "index.html" if target.is_dir() else target).is_file(), link
