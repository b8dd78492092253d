"""The index, read by the real pip and uv, from a folder and from a local web server."""

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
import zipfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

import pytest
import uv

from builder.errors import UsageError
from builder.publish.index.entry import Entry
from builder.publish.index.install import install_commands
from builder.publish.index.pages import project_pages, root_pages
from builder.publish.index.wheel_entry import read_entry
from tests.unit import loopback


def make_wheel(
    dist: Path,
    version: str = "1.0+cu13",
    *,
    name: str = "my_ext",
    requires_python: str = ">=3.8,<9",
    metadata_name: str = "My.Ext",
    requires: Sequence[str] = (),
) -> Path:
    """A pure Python wheel with one module that an installer accepts."""
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


def write_index(dist: Path, wheels: Sequence[Path]) -> Path:
    """Write the pages of an index beside these wheels of one folder."""
    projects: dict[str, list[Entry]] = {}
    for wheel in wheels:
        entry, metadata = read_entry(wheel)
        wheel.with_name(f"{wheel.name}.metadata").write_bytes(metadata)
        projects.setdefault(entry.project, []).append(entry)
    simple = dist / "simple"
    folders = {project: project_pages(project, entries) for project, entries in projects.items()}
    for folder, pages in {**folders, ".": root_pages(list(projects))}.items():
        (simple / folder).mkdir(parents=True, exist_ok=True)
        for name, data in pages.items():
            (simple / folder / name).write_bytes(data)
    return simple


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
    """The pip of this environment, or the pip that comes with every Python (ensurepip)."""
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    (bundled,) = Path(ensurepip.__file__).parent.glob("_bundled/pip-*.whl")
    folder = tmp_path_factory.mktemp("pip")
    with zipfile.ZipFile(bundled) as zipped:  # it starts faster when unpacked
        zipped.extractall(folder)
    return [sys.executable, str(folder / "pip")]


@pytest.fixture
def install(pip: list[str]) -> Install:
    """Run an installer, given its name, the index, the requirement and the target folder."""
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
    """Serves one folder, and collects the requested paths instead of printing them."""

    def __init__(self, *args: Any, paths: list[str], **kwargs: Any) -> None:
        self.paths = paths
        super().__init__(*args, **kwargs)

    def log_message(self, *_: object) -> None:
        self.paths.append(self.path)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, str, list[str]]]:
    """A folder, its URL, and the list of requested paths."""
    dist = tmp_path / "dist"
    dist.mkdir()
    paths: list[str] = []
    with loopback.serving(partial(Handler, paths=paths, directory=str(dist))) as address:
        yield dist, f"http://{address}/simple", paths


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
    dist, address, paths = served
    write_index(dist, [make_wheel(dist)])
    done = install(installer, address, "My.Ext", tmp_path / "site")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "my_ext.py").exists()
    requested = [unquote(path) for path in paths]
    assert "/my_ext-1.0+cu13-py3-none-any.whl.metadata" in requested
    assert requested.index("/my_ext-1.0+cu13-py3-none-any.whl.metadata") < requested.index(
        "/my_ext-1.0+cu13-py3-none-any.whl"
    )


@pytest.mark.parametrize("installer", INSTALLERS)
def test_installers_refuse_a_wheel_that_changed_since(tmp_path: Path, install: Install, installer: str) -> None:
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


@pytest.mark.parametrize("installer", INSTALLERS)
@pytest.mark.parametrize("torch", ["2.11.0", "2.4.1+cu124"])
def test_the_install_command_works_in_an_empty_environment(
    tmp_path: Path, pip: list[str], installer: str, torch: str
) -> None:
    dist = tmp_path / "it's a dist"
    make_wheel(dist, requires=["torch>=2.4"])
    with loopback.served(tmp_path / "index") as index:
        for version, channel in {"2.11.0": "default", "2.4.1": "default", "2.4.1+cu124": "whl/cu124"}.items():
            index.add("torch", version, channel=channel)
        for version in ("1.0", "9.0"):  # a foreign package of the same name
            index.add("my_ext", version)
        theirs = index.torch_index.replace("{variant}", "cu124") if "+" in torch else ""
        commands = install_commands(dist, "my-ext", "1.0+cu13", [f"torch=={torch}"], theirs)
        (command,) = (each for each in commands if each.startswith(f"{installer} "))
        programs = {"pip": [*pip, "--disable-pip-version-check"], "uv": [uv.find_uv_bin(), "--no-cache"]}
        function = f'{installer}() {{ {shlex.join(programs[installer])} "$@" --target "$SITE"; }}'
        done = subprocess.run(
            ["bash", "-c", f"{function}; {command}"],
            env={
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                "HOME": str(tmp_path),
                "SITE": str(tmp_path / "site"),
                "PIP_INDEX_URL": index.default,
                "UV_DEFAULT_INDEX": index.default,
                "UV_PYTHON": sys.executable,
            },
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert [path.name for path in (tmp_path / "site").glob("my_ext-*")] == ["my_ext-1.0+cu13.dist-info"]
    assert (tmp_path / "site" / "my_ext.py").exists()
    assert (tmp_path / "site" / f"torch-{torch}.dist-info").is_dir()


def test_the_html_page_follows_the_standards(tmp_path: Path) -> None:
    dist = tmp_path / "dist"
    wheel = make_wheel(dist)
    simple = write_index(dist, [wheel])
    page = simple / "my-ext" / "index.html"
    links = Links(page)
    assert {"name": "pypi:repository-version", "content": "1.4"} in links.meta
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


def test_the_json_page_agrees_with_the_html_page(tmp_path: Path) -> None:
    dist = tmp_path / "dist"
    wheels = [make_wheel(dist, version) for version in ("1.10", "1.9", "1.9+cu13")]
    os.utime(wheels[0], (1_700_000_000, 1_700_000_000))
    simple = write_index(dist, wheels)
    data = json.loads((simple / "my-ext" / "index.json").read_text())
    assert data["meta"]["api-version"] == "1.4"
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


def test_an_empty_index_is_an_index(tmp_path: Path) -> None:
    simple = write_index(tmp_path / "dist", [])
    assert Links(simple / "index.html").found == []


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        pytest.param("absent", "no such wheel", id="not there"),
        pytest.param("truncated", "this wheel cannot be read", id="truncated file"),
        pytest.param("empty", "one .dist-info folder, but this wheel has 0", id="zip without METADATA"),
        pytest.param("renamed", "METADATA says my-ext 1.0", id="name is not its METADATA's"),
    ],
)
def test_unusable_wheels_are_refused(tmp_path: Path, problem: str, message: str) -> None:
    dist = tmp_path / "dist"
    wheel = make_wheel(dist)
    match problem:
        case "absent":
            wheel.unlink()
        case "truncated":
            wheel.write_bytes(wheel.read_bytes()[:100])
        case "empty":
            with zipfile.ZipFile(wheel, "w"):
                pass
        case "renamed":
            wheel = wheel.rename(dist / "my_ext-1.1-py3-none-any.whl")
    with pytest.raises(UsageError, match=message) as caught:
        write_index(dist, [wheel])
    assert caught.value.where == str(wheel)
