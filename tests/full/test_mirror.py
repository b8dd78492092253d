"""`buildfarm index mirror` from real servers: one of buildfarm, and a web server with pages of PEP 503."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from builder.hashing import sha256_of
from builder.publish.index.integrity import check_index
from builder.publish.index.new_wheel import new_wheel
from builder.publish.index.objects import Folder
from builder.publish.index.pages import Status
from builder.publish.index.repository import Repository
from builder.publish.provenance import statement_path
from tests.fixtures import index_server
from tests.unit.loopback import pure_wheel
from tests.unit.publish.index.conftest import Run
from tests.unit.publish.index.make import CELL, proofs_of, ready

Asked = list[str]


@contextmanager
def web(root: Path) -> Iterator[tuple[str, Asked]]:
    """A plain web server of a folder; the paths that it was asked for."""
    asked: Asked = []

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            asked.append(self.path)

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(root))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()


def pages(root: Path, links: Callable[[Path], str], *wheels: Path) -> None:
    """An index of PEP 503 by hand: the links of one project."""
    folder = root / "simple" / "foreign"
    folder.mkdir(parents=True, exist_ok=True)
    for wheel in wheels:
        shutil.copy(wheel, folder / wheel.name)
    (folder / "index.html").write_text("".join(links(wheel) for wheel in wheels))
    (root / "simple" / "index.html").write_text('<a href="foreign/">Foreign</a>')


def link(wheel: Path, more: str = "", sha256: str = "") -> str:
    name = wheel.name.replace("+", "%2B")
    return f'<a href="{name}#sha256={sha256 or sha256_of(wheel)}" {more}>{wheel.name}</a>\n'


@pytest.fixture
def farm(tmp_path: Path) -> Repository:
    """An index of buildfarm with a tested, a yanked and an untested wheel of a deprecated project."""
    repository = Repository(Folder(tmp_path / "farm"))
    tested = ready(tmp_path / "wheels", version="1.0+cu130")
    statement_path(tested.wheel).write_text("{}\n")
    repository.add(new_wheel(tested.wheel, proofs_of(tested.wheel)))
    repository.add(ready(tmp_path / "wheels", version="2.0+cu130"))
    repository.yank("my_ext-2.0+cu130-py3-none-any.whl", "wrong results")
    repository.add(ready(tmp_path / "wheels", "untested", "1.0", proven=False))
    repository.set_status("my-ext", Status("deprecated", "use other"))
    return repository


def copied(root: Path) -> Repository:
    repository = Repository(Folder(root))
    assert check_index(repository).faults == ()
    return repository


@pytest.mark.parametrize("kind", ["folder", "serve", "web"])
def test_an_index_of_buildfarm_is_copied_with_proofs_yanks_and_status(
    farm: Repository, kind: str, tmp_path: Path, run: Run
) -> None:
    root, to = tmp_path / "farm", tmp_path / "mirror"
    words = ("index", "mirror", "{}", to, "--all", "--store", tmp_path / "store")

    def mirror(source: object) -> tuple[int, str, str]:
        return run(*(source if word == "{}" else word for word in words))

    if kind == "folder":
        first, second = mirror(root), mirror(root)
    elif kind == "serve":
        with index_server.running(root) as server:
            first, second = mirror(f"{server.url}/simple/"), mirror(f"{server.url}/simple")
            assert server.log.read_text().count(".whl 200 ") == 3  # each wheel once
    else:
        with web(root) as (url, asked):
            first, second = mirror(f"{url}/simple/"), mirror(f"{url}/simple/")
            assert len([path for path in asked if path.endswith(".whl")]) == 3
    assert (first[0], second[0]) == (0, 0)
    assert first[1].splitlines() == [
        "published          my_ext-1.0+cu130-py3-none-any.whl  1 cell: cpu",
        "published          my_ext-2.0+cu130-py3-none-any.whl  1 cell: cpu",
        "published          untested-1.0-py3-none-any.whl",
    ]
    assert second[1].count("already published") == 3
    mirrored = copied(to)
    by_name = {entry.filename: entry for entry in mirrored.entries("my-ext") + mirrored.entries("untested")}
    original = {entry.filename: entry for entry in farm.entries("my-ext") + farm.entries("untested")}
    assert by_name == original  # also the upload time, the levels, the yank and where the wheel was built
    tested = by_name["my_ext-1.0+cu130-py3-none-any.whl"].farm
    assert tested
    assert (tested.cells, tested.built_here) == ({CELL: "cpu"}, True)
    assert mirrored.objects.read(tested.statement) == b"{}\n"
    assert mirrored.status("my-ext") == Status("deprecated", "use other")
    mirrored.yank("my_ext-1.0+cu130-py3-none-any.whl", "ours")
    assert mirror(root)[0] == 0  # a yank of the mirror stays
    assert {entry.yanked for entry in copied(to).entries("my-ext")} == {"ours", "wrong results"}


def test_wheels_of_a_foreign_index_are_checked(tmp_path: Path, run: Run) -> None:
    good = pure_wheel(tmp_path / "w", "foreign", "1.0+cu130")
    yanked = pure_wheel(tmp_path / "w", "foreign", "1.1")
    wrong, unnamed = pure_wheel(tmp_path / "w", "foreign", "1.2"), pure_wheel(tmp_path / "w", "foreign", "1.3")
    missing, large = (
        pure_wheel(tmp_path / "w", "foreign", "1.4"),
        pure_wheel(tmp_path / "w", "foreign", "1.5", {"x": b"x" * 5000}),
    )
    other, spelled = pure_wheel(tmp_path / "w", "my_other", "1.0"), pure_wheel(tmp_path / "w", "foreign", "1.1.0")
    links = {
        good: link(good),
        yanked: link(yanked, 'data-yanked="bad"'),
        wrong: link(wrong, sha256="0" * 64),
        unnamed: f'<a href="{unnamed.name}">{unnamed.name}</a>',
        missing: link(missing),
        large: link(large),
        other: link(other),
        spelled: link(spelled),
    }
    root, to = tmp_path / "web", tmp_path / "mirror"
    pages(root, links.__getitem__, *links)
    (root / "simple" / "foreign" / missing.name).unlink()
    with web(root) as (url, asked):
        words = ("index", "mirror", f"{url}/simple/", to, "--store", tmp_path / "store", "--max-size", "4KiB")
        code, out, _ = run(*words, "Foreign", "--json")
        downloads = [path for path in asked if path.endswith(".whl")]
        again = run(*words, "foreign==1.0")
        assert (again[0], len([path for path in asked if path.endswith(".whl")])) == (0, len(downloads))
        assert run(*words, "foreign>=9")[0] == run(*words, "unknown")[0] == 3
        assert run(*words, "foreign", "--all")[0] == run(*words)[0] == run(*words, "a b")[0] == 2
        assert run(*words[:2], f"{url}/nothing/", *words[3:], "--all")[0] == 2
    assert code == 1
    results = {one["wheel"]: one for one in json.loads(out)}
    assert other.name not in results
    reasons = {name: " ".join(one["reasons"]) for name, one in results.items()}
    assert [name for name, one in results.items() if one["outcome"] == "published"] == [good.name, yanked.name]
    assert "the source says 000" in reasons[wrong.name]
    assert "names no sha256" in reasons[unnamed.name]
    assert "has no such file" in reasons[missing.name]
    assert "is larger than 4096 bytes" in reasons[large.name]
    assert "under the name foreign-1.1-" in reasons[spelled.name]
    entries = {entry.filename: entry for entry in copied(to).entries("foreign")}
    assert entries.keys() == {good.name, yanked.name}
    assert entries[yanked.name].yanked == "bad"
    facts = entries[good.name].farm
    assert facts
    assert (facts.cells, facts.cuda, facts.built_here) == ({}, ("cu130",), False)
    assert "not tested" in Folder(to).read("cu130/foreign/index.html").decode()


def test_a_mirror_continues_when_the_source_answers_again(tmp_path: Path, run: Run) -> None:
    root, to = tmp_path / "web", tmp_path / "mirror"
    wheels = [pure_wheel(tmp_path / "w", "foreign", version) for version in ("1.0", "2.0")]
    pages(root, link, *wheels)
    with web(root) as (url, asked):
        words = ("index", "mirror", f"{url}/simple/", to, "foreign", "--store", tmp_path / "store")
        page = root / "simple" / "foreign" / "index.html"
        page.write_text(link(wheels[0]) + link(wheels[1]).replace(wheels[1].name + "#", "http://127.0.0.1:9/x.whl#"))
        code, _, err = run(*words)
        assert (code, "does not answer" in " ".join(err.split())) == (4, True)
        assert not list((tmp_path / "store" / "work").iterdir())
        page.write_text(link(wheels[0]) + link(wheels[1]))
        before = len(asked)
        assert run(*words)[0] == 0
        assert [path for path in asked[before:] if path.endswith(".whl")] == [f"/simple/foreign/{wheels[1].name}"]
    assert len(copied(to).entries("foreign")) == 2
