"""The pages of the index."""

from __future__ import annotations

import base64
import hashlib
import html.parser
import json
import os
import zipfile
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import pytest

from builder.errors import UsageError
from builder.publish.index.entry import Entry
from builder.publish.index.pages import project_pages, root_pages
from builder.publish.index.wheel_file import read_entry


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
    pages = {f"simple/{name}": data for name, data in root_pages(list(projects)).items()}
    for project, entries in projects.items():
        pages |= dict(project_pages(project, {"simple": entries}))
    for name, data in pages.items():
        (dist / name).parent.mkdir(parents=True, exist_ok=True)
        (dist / name).write_bytes(data)
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
    assert link["data-core-metadata"] == digest
    assert "data-dist-info-metadata" not in link
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
