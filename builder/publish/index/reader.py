"""Reads the pages of an index in a folder or on a web server."""

from __future__ import annotations

from email import message_from_bytes
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import requests
from packaging.utils import canonicalize_name

from builder.errors import MissingToolError, UsageError
from builder.publish.index.entry import Entry
from builder.publish.index.pages import entries_of, link
from builder.publish.index.repository import ALL

_ACCEPT = {"Accept": "application/vnd.pypi.simple.v1+json"}
_SECONDS = 60


class IndexReader:
    """An index by its folder or by the URL of its root, which contains `simple/`."""

    def __init__(self, place: str) -> None:
        remote = urlsplit(place).scheme in {"http", "https"}
        self._folder = None if remote else Path(place)
        self.url = f"{place.rstrip('/')}/" if remote else f"{Path(place).resolve().as_uri()}/"

    def entries(self, name: str, path: str = ALL) -> list[Entry]:
        """The wheels of a project.

        Raises UsageError for an unknown project or an unreadable page, MissingToolError if the server does not answer.
        """
        page = f"{path}/{canonicalize_name(name)}/"
        data = self._get(page if self._folder is None else f"{page}index.json")
        if data is None:
            raise UsageError(f"the index has no project of this name ({self.url}{page})", where=name)
        try:
            return entries_of(data)
        except (ValueError, KeyError, TypeError):
            raise UsageError("this page is no JSON page of a package index (PEP 691)", where=self.url + page) from None

    def requires(self, entry: Entry) -> list[str]:
        """The Requires-Dist lines of a wheel; empty if the index has no METADATA of it."""
        path = f"{entry.path}.metadata"
        data = self._get(path) if self._folder else self._get(link(path).removeprefix("../../"))
        return message_from_bytes(data or b"").get_all("Requires-Dist", [])

    def _get(self, path: str) -> bytes | None:
        """Contents of a file of the index, or None if there is none."""
        if self._folder:
            file = self._folder / path
            return file.read_bytes() if file.is_file() else None
        url = urljoin(self.url, path)
        try:
            answer = requests.get(url, headers=_ACCEPT, timeout=_SECONDS)
            if answer.status_code == requests.codes.not_found:
                return None
            answer.raise_for_status()
        except requests.RequestException as error:
            raise MissingToolError(f"the index does not answer: {error}", where=url) from None
        return answer.content
