"""Reads the pages of an index in a folder or on a web server."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from email import message_from_bytes
from urllib.parse import urljoin

import requests
from packaging.utils import canonicalize_name

from builder.errors import Code, MissingToolError, UsageError
from builder.publish.index.entry import Entry
from builder.publish.index.pages import entries_of, quoted
from builder.publish.index.paths import ALL
from builder.publish.remote.credentials import (
    VARIABLE,
    bundle_for,
    is_safe,
    login_for,
    login_in,
    where_to_put_it,
    without_login,
)
from builder.store import local_path
from builder.untrusted import JsonError, split_url

_ACCEPT = {"Accept": "application/vnd.pypi.simple.v1+json"}
_SECONDS = 60
_REFUSED = {requests.codes.unauthorized, requests.codes.forbidden}


class IndexReader:
    """An index by its folder or by the URL of its root, which contains `simple/`."""

    def __init__(self, place: str) -> None:
        """Open an index; raises UsageError for a URL that pip and uv cannot read either.

        `place` may also be the URL that pip takes, which ends with `/simple/`.
        """
        place = place.rstrip("/").removesuffix(f"/{ALL}") or place
        self._folder = local_path(place)
        if self._folder is None and split_url(place).scheme not in {"http", "https"}:
            raise UsageError(
                "pip and uv read an index from a folder or a web server only",
                Code.VALUE_INVALID,
                where=place,
                hints=["name the URL of the web server in front of the bucket (docs/how-to/object-stores.md)"],
            )
        #: The root, without user and password.
        self.url = f"{self._folder.resolve().as_uri()}/" if self._folder else f"{without_login(place).rstrip('/')}/"
        #: User and password that the index was asked with; None: requests takes those of the netrc file, if any.
        self.login = None if self._folder else login_in(place)
        self._token = None if self._folder else login_for(place)
        self._verify = bundle_for(self.url)

    def entries(self, name: str) -> list[Entry]:
        """The wheels of a project.

        Raises UsageError for an unknown project or an unreadable page, and if the server wants another
        token; MissingToolError if the server does not answer.
        """
        if self._folder and not (self._folder / ALL).is_dir():
            raise UsageError(
                "this folder contains no index" if self._folder.is_dir() else "there is no such folder",
                Code.NO_INDEX,
                where=str(self._folder),
                hints=["`buildfarm publish WHEEL --to DIR` makes an index in the folder DIR"],
            )
        page = f"{ALL}/{canonicalize_name(name)}/"
        found = None
        # A server of static files answers a page with HTML, and has the JSON under its own name.
        for file in (f"{page}index.json",) if self._folder else (page, f"{page}index.json"):
            if (data := self._get(file)) is not None:
                found = data
                with suppress(JsonError):
                    return entries_of(data)
        if found is None:
            raise UsageError(f"the index has no project of this name ({self.url}{page})", Code.NOT_IN_INDEX, where=name)
        raise UsageError("this page is no JSON page of a package index (PEP 691)", Code.NO_INDEX, where=self.url + page)

    def requires(self, entry: Entry) -> Sequence[str]:
        """The Requires-Dist lines of a wheel that require torch, or all of them; empty if the index has none."""
        if entry.farm and entry.farm.requires_torch is not None:
            return entry.farm.requires_torch
        path = f"{entry.path}.metadata"
        data = self._get(path) if self._folder else self._get(quoted(path))
        return message_from_bytes(data or b"").get_all("Requires-Dist", [])

    def _get(self, path: str) -> bytes | None:
        """Contents of a file of the index, or None if there is none."""
        if self._folder:
            file = self._folder / path
            return file.read_bytes() if file.is_file() else None
        url = urljoin(self.url, path)
        try:
            answer = self._ask(url)
            # An index that does not ask for the token does not get it: it may be that of somebody else.
            if answer.status_code in _REFUSED and self.login != self._token:
                self.login = self._token
                answer = self._ask(url)
            if answer.status_code in _REFUSED:
                raise self._refusal(answer)
            if answer.status_code == requests.codes.not_found:
                return None
            answer.raise_for_status()
        except requests.RequestException as error:
            raise MissingToolError(f"the index does not answer: {error}", Code.NETWORK_UNREACHABLE, where=url) from None
        return answer.content

    def _ask(self, url: str) -> requests.Response:
        login = self.login if url.startswith(self.url) else None
        return requests.get(url, headers=_ACCEPT, timeout=_SECONDS, auth=login, verify=self._verify)

    def _refusal(self, answer: requests.Response) -> UsageError:
        """The error for an answer with one of the statuses `_REFUSED`."""
        sentence = "this index can only be read with a token"
        if "Authorization" in answer.request.headers:
            sentence = "the index does not accept the token or the password"
        hints = where_to_put_it(self.url)
        if not is_safe(self.url):
            hints = [f"use https://; without TLS, {VARIABLE} is sent to no other machine", *hints[1:]]
        return UsageError(f"{sentence} (status {answer.status_code})", Code.LOGIN_REFUSED, where=self.url, hints=hints)
