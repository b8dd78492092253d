"""The pages of the index."""

from __future__ import annotations

import html.parser
import json
import re
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

from builder.hashing import sha256_of
from builder.publish.index.new_wheel import new_wheel
from builder.publish.index.objects import Folder
from builder.publish.index.repository import Repository
from tests.unit.loopback import pure_wheel


def index_of(folder: Path, *wheels: Path) -> Path:
    """Publish these wheels in an index; return the folder with its pages."""
    for wheel in wheels:
        Repository(Folder(folder)).add(new_wheel(wheel, []))
    return folder / "simple"


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
    wheel = pure_wheel(tmp_path, "my_ext", "1.0+cu13", requires_python=">=3.8,<9")
    page = index_of(tmp_path / "index", wheel) / "my-ext" / "index.html"
    links = Links(page)
    assert {"name": "pypi:repository-version", "content": "1.4"} in links.meta
    (link,) = links.found
    address = urlsplit(urljoin(page.as_uri(), link["href"]))
    assert "+" not in address.path
    published = Path(unquote(address.path))
    assert published.read_bytes() == wheel.read_bytes()
    assert address.fragment == f"sha256={sha256_of(wheel)}"
    assert link["data-core-metadata"] == f"sha256={sha256_of(published.with_name(f'{wheel.name}.metadata'))}"
    assert "data-dist-info-metadata" not in link
    assert link["data-requires-python"] == ">=3.8,<9"
    assert 'data-requires-python="&gt;=3.8,&lt;9"' in page.read_text()
    assert [entry["href"] for entry in Links(tmp_path / "index" / "simple" / "index.html").found] == ["my-ext/"]


def test_the_json_page_agrees_with_the_html_page(tmp_path: Path) -> None:
    wheels = [
        pure_wheel(tmp_path, "my_ext", version, requires_python=">=3.8") for version in ("1.10", "1.9", "1.9+cu13")
    ]
    simple = index_of(tmp_path / "index", *wheels)
    data = json.loads((simple / "my-ext" / "index.json").read_text())
    assert data["meta"]["api-version"] == "1.4"
    assert (data["name"], data["versions"]) == ("my-ext", ["1.9", "1.9+cu13", "1.10"])
    assert [f"{f['url'].replace('+', '%2B')}#sha256={f['hashes']['sha256']}" for f in data["files"]] == [
        link["href"] for link in Links(simple / "my-ext" / "index.html").found
    ]
    newest = data["files"][-1]
    assert (newest["filename"], newest["size"]) == ("my_ext-1.10-py3-none-any.whl", wheels[0].stat().st_size)
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", newest["upload-time"])
    assert newest["requires-python"] == ">=3.8"
    assert json.loads((simple / "index.json").read_text())["projects"] == [{"name": "my-ext"}]
