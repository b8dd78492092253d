"""The index: read by the real pip and the real uv, from the folder and from a web server on loopback."""

from __future__ import annotations

import base64
import ensurepip
import hashlib
import html.parser
import importlib.util
import json
import os
import shlex
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

import pytest
import uv

from builder.errors import UsageError
from builder.publish.index import install_command, write_index


def make_wheel(
    dist: Path,
    version: str = "1.0+cu13",
    *,
    name: str = "my_ext",
    requires_python: str = ">=3.8,<9",
    metadata_name: str = "My.Ext",
    requires: Sequence[str] = (),
) -> Path:
    """A pure wheel with one module, as an installer accepts it."""
    info = f"{name}-{version}.dist-info"
    head = [f"Metadata-Version: 2.1\nName: {metadata_name}\nVersion: {version}"]
    head += [f"Requires-Python: {requires_python}"] if requires_python else []
    head += [f"Requires-Dist: {line}" for line in requires]
    files = {
        f"{name}.py": f"VERSION = {version!r}\n",
        f"{info}/METADATA": "\n".join(head) + "\n\nGrüße\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = []
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        rows.append(f"{path},sha256={digest},{len(text.encode())}\n")
    files[f"{info}/RECORD"] = "".join(rows) + f"{info}/RECORD,,\n"
    dist.mkdir(parents=True, exist_ok=True)
    wheel = dist / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as zipped:
        for path, text in files.items():
            zipped.writestr(path, text)
    return wheel


class Links(html.parser.HTMLParser):
    def __init__(self, page: Path) -> None:
        super().__init__()
        self.found: list[dict[str, str]] = []
        self.meta: list[dict[str, str]] = []
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        entry = {name: value or "" for name, value in attrs}
        if tag == "a":
            self.found.append(entry)
        elif tag == "meta":
            self.meta.append(entry)


PIP_OPTIONS = ["--isolated", "--disable-pip-version-check", "--no-input", "--no-cache-dir"]
INSTALLERS = ("pip", "uv")

Install = Callable[[str, str, str, Path], subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def pip(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The pip of this environment, or the one that every Python carries to make environments with."""
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    (bundled,) = Path(ensurepip.__file__).parent.glob("_bundled/pip-*.whl")
    folder = tmp_path_factory.mktemp("pip")
    with zipfile.ZipFile(bundled) as zipped:  # unpacked it starts faster
        zipped.extractall(folder)
    return [sys.executable, str(folder / "pip")]


@pytest.fixture
def install(pip: list[str]) -> Install:
    """Run an installer: its name, the index, what is wanted, where to put it."""
    programs = {
        "pip": [*pip, *PIP_OPTIONS, "install"],
        "uv": [uv.find_uv_bin(), "--no-config", "--no-cache", "pip", "install", "--python", sys.executable],
    }
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "UV_"))}

    def run(installer: str, index: str, wanted: str, target: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*programs[installer], "--index-url", index, "--target", str(target), wanted],
            env=clean | {"PIP_CONFIG_FILE": os.devnull, "NO_PROXY": "127.0.0.1"},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


class Handler(SimpleHTTPRequestHandler):
    """Serves one folder, and notes what it was asked for instead of printing it."""

    def __init__(self, *args: Any, seen: list[str], **kwargs: Any) -> None:
        self.seen = seen
        super().__init__(*args, **kwargs)

    def log_message(self, *_: object) -> None:
        self.seen.append(self.path)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, str, list[str]]]:
    """A folder, the address it is served at, and the paths that were asked for."""
    dist = tmp_path / "dist"
    dist.mkdir()
    seen: list[str] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, seen=seen, directory=str(dist)))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield dist, f"http://127.0.0.1:{server.server_port}/simple", seen
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize("installer", INSTALLERS)
def test_installs_from_the_folder(tmp_path: Path, install: Install, installer: str) -> None:
    dist = tmp_path / "a folder & more"
    simple = write_index(dist, [make_wheel(dist, "1.0+cu13"), make_wheel(dist, "1.0+cu14")])
    done = install(installer, simple.as_uri(), "my-ext==1.0+cu13", tmp_path / "site")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "my_ext.py").read_text() == "VERSION = '1.0+cu13'\n"


@pytest.mark.parametrize("installer", INSTALLERS)
def test_installs_from_a_web_server_and_reads_metadata_beside_the_wheel(
    served: tuple[Path, str, list[str]], tmp_path: Path, install: Install, installer: str
) -> None:
    dist, address, seen = served
    write_index(dist, [make_wheel(dist)])
    done = install(installer, address, "My.Ext", tmp_path / "site")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "my_ext.py").exists()
    asked = [unquote(path) for path in seen]
    assert "/my_ext-1.0+cu13-py3-none-any.whl.metadata" in asked
    assert asked.index("/my_ext-1.0+cu13-py3-none-any.whl.metadata") < asked.index("/my_ext-1.0+cu13-py3-none-any.whl")


@pytest.mark.parametrize("installer", INSTALLERS)
def test_refuses_a_wheel_that_is_not_the_one_indexed(tmp_path: Path, install: Install, installer: str) -> None:
    dist = tmp_path / "dist"
    wheel = make_wheel(dist)
    simple = write_index(dist, [wheel])
    with wheel.open("ab") as stream:
        stream.write(b"\0")
    done = install(installer, simple.as_uri(), "my-ext", tmp_path / "site")
    assert done.returncode != 0
    assert "hash" in done.stderr.lower()
    assert not (tmp_path / "site" / "my_ext.py").exists()


@pytest.mark.parametrize("installer", INSTALLERS)
def test_installers_heed_requires_python(tmp_path: Path, install: Install, installer: str) -> None:
    dist = tmp_path / "dist"
    simple = write_index(
        dist,
        [make_wheel(dist, "1.0"), make_wheel(dist, "2.0", requires_python=">=3.99")],
    )
    done = install(installer, simple.as_uri(), "my-ext", tmp_path / "site")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "my_ext.py").read_text() == "VERSION = '1.0'\n"


def test_the_command_a_person_copies_works(tmp_path: Path, pip: list[str]) -> None:
    dist = tmp_path / "it's a dist"
    write_index(dist, [make_wheel(dist)])
    command = install_command(dist, "my-ext", "1.0+cu13")
    words = shlex.split(command)
    assert words[:3] == ["pip", "install", "--index-url"]
    assert words[4:] == ["my-ext==1.0+cu13"]
    done = subprocess.run(
        ["bash", "-c", f'pip() {{ {shlex.join([*pip, *PIP_OPTIONS])} "$@" --target "$SITE"; }}; {command}'],
        env={"PATH": os.environ["PATH"], "SITE": str(tmp_path / "site"), "PIP_CONFIG_FILE": os.devnull},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "my_ext.py").exists()


def test_the_command_names_what_is_missing(tmp_path: Path, install: Install) -> None:
    dist = tmp_path / "dist"
    simple = write_index(dist, [make_wheel(dist, requires=["torch>=2.10"])])
    done = install("pip", simple.as_uri(), "my-ext==1.0+cu13", tmp_path / "site")
    assert done.returncode != 0
    assert "torch>=2.10" in done.stderr


def test_page_says_what_the_standards_ask(tmp_path: Path) -> None:
    dist = tmp_path / "dist"
    wheel = make_wheel(dist)
    simple = write_index(dist, [wheel])
    page = simple / "my-ext" / "index.html"
    links = Links(page)
    assert {"name": "pypi:repository-version", "content": "1.0"} in links.meta
    (link,) = links.found
    address = urlsplit(urljoin(page.as_uri(), link["href"]))
    assert unquote(address.path) == str(wheel)
    assert "+" not in address.path
    assert address.fragment == f"sha256={hashlib.sha256(wheel.read_bytes()).hexdigest()}"
    beside = wheel.with_name(wheel.name + ".metadata")
    assert "Grüße" in beside.read_text(encoding="utf-8")
    digest = f"sha256={hashlib.sha256(beside.read_bytes()).hexdigest()}"
    assert link["data-dist-info-metadata"] == link["data-core-metadata"] == digest
    assert link["data-requires-python"] == ">=3.8,<9"
    assert 'data-requires-python="&gt;=3.8,&lt;9"' in page.read_text()
    assert [entry["href"] for entry in Links(simple / "index.html").found] == ["my-ext/"]


def test_json_says_the_same_as_the_page(tmp_path: Path) -> None:
    dist = tmp_path / "dist"
    wheels = [make_wheel(dist, version) for version in ("1.10", "1.9", "1.9+cu13")]
    os.utime(wheels[0], (1_700_000_000, 1_700_000_000))
    simple = write_index(dist, wheels)
    data = json.loads((simple / "my-ext" / "index.json").read_text())
    assert data["meta"]["api-version"] == "1.1"
    assert data["name"] == "my-ext"
    assert data["versions"] == ["1.9", "1.9+cu13", "1.10"]
    assert [f"{f['url']}#sha256={f['hashes']['sha256']}" for f in data["files"]] == [
        link["href"] for link in Links(simple / "my-ext" / "index.html").found
    ]
    newest = data["files"][-1]
    assert newest["filename"] == "my_ext-1.10-py3-none-any.whl"
    assert newest["size"] == wheels[0].stat().st_size
    assert newest["upload-time"] == "2023-11-14T22:13:20.000000Z"
    assert newest["requires-python"] == ">=3.8,<9"
    assert json.loads((simple / "index.json").read_text())["projects"] == [{"name": "my-ext"}]


def test_unchanged_pages_are_left_alone_and_changed_ones_replaced_whole(tmp_path: Path) -> None:
    dist = tmp_path / "dist"
    one, other = make_wheel(dist), make_wheel(dist, name="other", metadata_name="other")
    simple = write_index(dist, [other, one])
    before = {path: (path.stat().st_ino, path.read_bytes()) for path in simple.rglob("*.*")}
    write_index(dist, [one, other])
    assert {path: (path.stat().st_ino, path.read_bytes()) for path in simple.rglob("*.*")} == before
    with (simple / "my-ext" / "index.html").open() as reader:  # somebody in the middle of the old page
        write_index(dist, [one, other, make_wheel(dist, "2.0")])
        assert reader.read().encode() == before[simple / "my-ext" / "index.html"][1]
    assert "2.0" in (simple / "my-ext" / "index.html").read_text()
    assert (simple / "other" / "index.html").stat().st_ino == before[simple / "other" / "index.html"][0]
    assert not list(simple.rglob(".*"))


def test_what_is_gone_is_no_longer_listed(tmp_path: Path) -> None:
    dist = tmp_path / "dist"
    one, other = make_wheel(dist), make_wheel(dist, name="other", metadata_name="other")
    simple = write_index(dist, [one, other])
    other.unlink()
    write_index(dist, [one])
    assert not (simple / "other").exists()
    assert not other.with_name(other.name + ".metadata").exists()
    assert [entry["href"] for entry in Links(simple / "index.html").found] == ["my-ext/"]


def test_a_rebuilt_wheel_gets_its_new_digest(tmp_path: Path) -> None:
    dist = tmp_path / "dist"
    wheel = make_wheel(dist)
    write_index(dist, [wheel])
    make_wheel(dist, requires=["numpy"])
    simple = write_index(dist, [wheel])
    assert hashlib.sha256(wheel.read_bytes()).hexdigest() in (simple / "my-ext" / "index.html").read_text()
    assert "numpy" in wheel.with_name(wheel.name + ".metadata").read_text()


def test_a_damaged_old_page_is_made_anew(tmp_path: Path) -> None:
    dist = tmp_path / "dist"
    wheel = make_wheel(dist)
    page = write_index(dist, [wheel]) / "my-ext" / "index.json"
    good = page.read_bytes()
    page.write_text('{"files": [{"filename": "my_ext-1.0+cu13')
    write_index(dist, [wheel])
    assert page.read_bytes() == good


def test_an_empty_index_is_an_index(tmp_path: Path) -> None:
    simple = write_index(tmp_path / "dist", [])
    assert Links(simple / "index.html").found == []


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        pytest.param("elsewhere", "is not in", id="outside dist"),
        pytest.param("absent", "no such wheel", id="not there"),
        pytest.param("torn", "no wheel that can be read", id="torn file"),
        pytest.param("empty", "no METADATA", id="zip without METADATA"),
        pytest.param("renamed", "METADATA says my-ext 1.0", id="name is not its METADATA's"),
    ],
)
def test_refuses(tmp_path: Path, fault: str, says: str) -> None:
    dist = tmp_path / "dist"
    wheel = make_wheel(tmp_path / "other" if fault == "elsewhere" else dist)
    match fault:
        case "absent":
            wheel.unlink()
        case "torn":
            wheel.write_bytes(wheel.read_bytes()[:100])
        case "empty":
            with zipfile.ZipFile(wheel, "w"):
                pass
        case "renamed":
            wheel = wheel.rename(dist / "my_ext-1.1-py3-none-any.whl")
    with pytest.raises(UsageError, match=says) as caught:
        write_index(dist, [wheel])
    assert caught.value.where == str(wheel)
