"""Serves the pages and the files of an index, and nothing else that lies in its folder."""

import base64
import binascii
import hashlib
import os
import re
import stat
from contextlib import suppress
from email.utils import formatdate
from pathlib import Path
from urllib.parse import unquote

import anyio.to_thread
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, RedirectResponse, Response
from starlette.staticfiles import NotModifiedResponse, StaticFiles

from builder.publish.index.pages import ALL, WITHOUT_CUDA, root_pages, served_as
from builder.publish.people.people_pages import FOLDER
from builder.publish.server.tokens import Token, Tokens

#: The path of a page in a URL: a place of the index, and a project in it.
_PAGE = re.compile(
    rf"(?:(?P<place>{FOLDER}|{ALL}|{WITHOUT_CUDA}|cu\d+(?:/torch\d+\.\d+)?)/"
    r"(?:(?P<project>[a-z0-9][a-z0-9-]{0,200})/)?)?"
)
_FILE = re.compile(r"[0-9a-f]{2}/[0-9a-f]{62}/[A-Za-z0-9_][A-Za-z0-9_.+!-]{0,250}")
#: The pages for people name the hashes of their own style and script; other pages have none.
_POLICY = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
_PEOPLE_POLICY = f"{_POLICY}; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
#: Headers that keep a browser from running what others uploaded; `app.py` adds that it must not guess at it.
_SECURED = {"content-security-policy": _POLICY, "referrer-policy": "no-referrer"}


class Pages:
    """Answers GET and HEAD."""

    def __init__(self, root: Path, tokens: Tokens, token_required: bool) -> None:
        self._root, self._tokens, self._token_required = root, tokens, token_required
        self._cache = "private" if token_required else "public"
        self._static = StaticFiles(directory=root, check_dir=False)

    async def page(self, request: Request) -> Response:
        """Answer `/` and `/projects/my-ext/` for people, `/simple/`, `/cu130/torch2.11/my-ext/` for installers.

        Installers ask for the normalized name of a project, and with the last slash.
        """
        self.allow(request)
        found = _PAGE.fullmatch(request.path_params["path"])
        if not found or (found["place"] == FOLDER and not found["project"]):
            raise HTTPException(404, "the index has no such path")
        place, project = found["place"] or "", found["project"] or ""
        if not place and not (self._root / "index.html").is_file():  # an index without a wheel
            return RedirectResponse(f"{ALL}/", 302)
        if place == ALL and not project and not (self._root / place).is_dir():
            name = _negotiated(request)
            return Response(root_pages([])[name], headers={"content-type": served_as(name)[0], "vary": "Accept"})
        folder = f"{place}/{project}".strip("/")
        if place in ("", FOLDER):
            return await self._page(request, folder, "index.html", policy=_PEOPLE_POLICY)
        return await self._page(request, folder)

    async def file(self, request: Request) -> Response:
        """Answer `/files/AB/CDEF…/WHEEL` and the files beside a wheel."""
        self.allow(request)
        name = unquote(request.path_params["file"])  # simple-repository-server quotes a URL twice
        if not _FILE.fullmatch(name):
            raise HTTPException(404, "the index has no such file")
        path, found = await anyio.to_thread.run_sync(self._found, f"files/{name}")
        if found is None:
            raise HTTPException(404, "the index has no such file")
        kind, kept = served_as(name)
        headers = {"cache-control": f"{self._cache}, {kept}", **_SECURED}
        if name.endswith((".whl", ".whl.metadata")):
            headers["etag"] = f'"{name[:2]}{name[3:65]}{".metadata" * name.endswith(".metadata")}"'
        response = FileResponse(path, headers=headers, media_type=kind, stat_result=found)
        return self._or_not_modified(request, response)

    def allow(self, request: Request) -> None:
        """Raise HTTPException if the index may only be read with a token and the request has none."""
        if token_of(request, self._tokens) is None and self._token_required:
            raise unauthorized("reading this index needs a valid token: user __token__, the token as password")

    async def _page(self, request: Request, folder: str, name: str = "", *, policy: str = _POLICY) -> Response:
        """A page in the form that the client accepts, or the named file."""
        name = name or _negotiated(request)
        kind, kept = served_as(name)
        path, found = self._found(f"{folder}/{name}".lstrip("/"))
        if found is None:
            raise HTTPException(404, "the index has no such project")
        headers = {
            "content-type": kind,
            "cache-control": f"{self._cache}, {kept}",
            "vary": "Accept",
            **_SECURED,
            "content-security-policy": policy,
        }
        data = path.read_bytes()  # at once: a publisher may replace the page while it is sent
        headers |= {
            "etag": f'"{hashlib.sha256(data).hexdigest()[:32]}"',
            "last-modified": formatdate(found.st_mtime, usegmt=True),
        }
        return self._or_not_modified(request, Response(data, headers=headers))

    def _found(self, name: str) -> tuple[Path, os.stat_result | None]:
        """A file of the index with the facts about it; None for anything else, also for a link out of the folder."""
        path, found = self._static.lookup_path(name)
        return Path(path), found if found and stat.S_ISREG(found.st_mode) else None

    def _or_not_modified(self, request: Request, response: Response) -> Response:
        if self._static.is_not_modified(response.headers, request.headers):
            return NotModifiedResponse(response.headers)
        return response


def _negotiated(request: Request) -> str:
    """The file name of a page: JSON for installers, which accept it (PEP 691), else HTML."""
    accepted = request.headers.get("accept", "")
    return "index.json" if re.search(r"application/vnd\.pypi\.simple\.(?:v1|latest)\+json", accepted) else "index.html"


def unauthorized(sentence: str) -> HTTPException:
    """The error that asks for a token."""
    return HTTPException(401, sentence, {"WWW-Authenticate": 'Basic realm="buildfarm"'})


def token_of(request: Request, tokens: Tokens) -> Token | None:
    """The token of a request: the password of the user `__token__`, or a bearer token. None without a valid token."""
    secret = _secret(request.headers.get("authorization", ""))
    return tokens.find(secret) if secret else None


def _secret(header: str) -> str:
    scheme, _, value = header.partition(" ")
    if scheme.lower() == "bearer":
        return value.strip()
    if scheme.lower() == "basic":
        with suppress(binascii.Error, UnicodeDecodeError):
            user, _, password = base64.b64decode(value.strip(), validate=True).decode().partition(":")
            return password if user == "__token__" else ""
    return ""
