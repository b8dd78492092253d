"""Reads an index in a folder or on a web server; the user and the token for it, and to which servers they are sent."""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from email import message_from_bytes
from urllib.parse import urljoin, urlsplit

import requests
from packaging.utils import canonicalize_name
from requests.utils import get_auth_from_url, get_netrc_auth

from builder.errors import Code, MissingToolError, UsageError
from builder.images.network import ca_bundle, is_loopback
from builder.publish.index.pages import ALL, JSON_TYPE, Entry, entries_of, quoted
from builder.store import local_path
from builder.untrusted import JsonError, split_url, without_credentials

#: The variable with the token.
VARIABLE = "BUILDFARM_TOKEN"
_USER = "__token__"
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
            sentence = "pip and uv read an index from a folder or a web server only"
            hint = "name the URL of the web server in front of the bucket (docs/how-to/object-stores.md)"
            raise UsageError(sentence, Code.VALUE_INVALID, where=place, hints=[hint])
        #: The root, without user and password.
        self.url = (
            f"{self._folder.resolve().as_uri()}/" if self._folder else f"{without_credentials(place).rstrip('/')}/"
        )
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
            sentence = "this folder contains no index" if self._folder.is_dir() else "there is no such folder"
            hint = "`buildfarm publish WHEEL --to DIR` makes an index in the folder DIR"
            raise UsageError(sentence, Code.NO_INDEX, where=str(self._folder), hints=[hint])
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
        return requests.get(url, headers={"Accept": JSON_TYPE}, timeout=_SECONDS, auth=login, verify=self._verify)

    def _refusal(self, answer: requests.Response) -> UsageError:
        """The error for an answer with one of the statuses `_REFUSED`."""
        sentence = "this index can only be read with a token"
        if "Authorization" in answer.request.headers:
            sentence = "the index does not accept the token or the password"
        hints = where_to_put_it(self.url)
        if not is_safe(self.url):
            hints = [f"use https://; without TLS, {VARIABLE} is sent to no other machine", *hints[1:]]
        return UsageError(f"{sentence} (status {answer.status_code})", Code.LOGIN_REFUSED, where=self.url, hints=hints)


def token_for(url: str, environ: Mapping[str, str] = os.environ) -> str:
    """The token from BUILDFARM_TOKEN, or from the netrc file for the host. Raises UsageError without one."""
    login = get_netrc_auth(url)
    secret = _checked(environ.get(VARIABLE, "").strip() or (login[1] if login and login[0] == _USER else ""))
    if secret:
        return secret
    raise UsageError(
        "an upload to an index server needs a token",
        Code.LOGIN_REFUSED,
        where=url,
        hints=[
            "the owner of the index makes one with `buildfarm token add DIR --name NAME --scope prove`",
            *where_to_put_it(url),
        ],
    )


def login_for(url: str, environ: Mapping[str, str] = os.environ) -> tuple[str, str] | None:
    """User and password that read an index: those in its URL, or the token from BUILDFARM_TOKEN.

    None: neither; requests then reads the netrc file. Without TLS, only this machine gets the token of the variable.
    """
    if login := login_in(url):
        return login
    secret = environ.get(VARIABLE, "").strip()
    return (_USER, _checked(secret)) if secret and is_safe(url) else None


def login_in(url: str) -> tuple[str, str] | None:
    """User and password in a URL; None if it has none."""
    user, password = get_auth_from_url(url)
    return (user, password) if user or password else None


def bundle_for(url: str) -> str | None:
    """The CA bundle that the certificate of a server is verified with; None: that of requests, or no TLS."""
    if not url.startswith("https:"):
        return None
    try:
        return str(ca_bundle())
    except MissingToolError:
        return None


def is_safe(url: str) -> bool:
    """Whether nobody on the network can read what is sent to this URL."""
    parts = urlsplit(url)
    return parts.scheme == "https" or is_loopback(parts.hostname or "")


def where_to_put_it(url: str) -> list[str]:
    """Hints for somebody who has a token."""
    return [
        f"put it into the environment variable {VARIABLE}",
        f"or put it into ~/.netrc: machine {urlsplit(url).hostname} login {_USER} password TOKEN",
    ]


def _checked(secret: str) -> str:
    if secret and not (secret.isascii() and secret.isprintable()):
        raise UsageError("a token has only ASCII letters, digits, `-` and `_`", Code.VALUE_INVALID, where=VARIABLE)
    return secret
