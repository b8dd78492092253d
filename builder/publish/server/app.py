"""The index server as an ASGI app."""

from __future__ import annotations

from collections.abc import Callable

from starlette.applications import Starlette
from starlette.convertors import StringConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from builder.publish.people.people_pages import FOLDER
from builder.publish.remote.evidence import UPLOAD_PATH
from builder.publish.server.pages import Pages
from builder.publish.server.replies import AccessLog, answer
from builder.publish.server.settings import ServerSettings
from builder.publish.server.tokens import Tokens
from builder.publish.server.uploads import Uploads


class _IndexPlace(StringConvertor):
    """A path of the index in a URL: `cu130`, or `cu130/torch2.11`."""

    regex = r"[^/]+(?:/torch[0-9]+\.[0-9]+)?"


register_url_convertor("place", _IndexPlace())


def make_app(settings: ServerSettings, write: Callable[[str], object]) -> ASGIApp:
    """The app; `write` gets the lines of the access log."""
    tokens = Tokens(settings.root)
    pages, uploads = Pages(settings, tokens), Uploads(settings, tokens)
    routes = [
        Route("/", pages.home),
        Route("/health", _health),
        Route(f"/{UPLOAD_PATH}/", uploads.rights, methods=["GET"]),
        Route(f"/{UPLOAD_PATH}", uploads.upload, methods=["POST"]),
        Route(f"/{UPLOAD_PATH}/", uploads.upload, methods=["POST"]),
        Route("/files/{file:path}", pages.file),
        Route(f"/{FOLDER}/{{project}}/", pages.project),
        Route("/{path:place}/", pages.list_of_projects),
        Route("/{path:place}/{project}/", pages.project),
        Route("/{path:place}", pages.without_slash),
        Route("/{path:place}/{project}", pages.without_slash),
    ]
    app = Starlette(routes=routes, exception_handlers={HTTPException: answer})
    app.router.redirect_slashes = False
    return AccessLog(app, write, as_json=settings.json_log)


async def _health(_: Request) -> Response:
    return PlainTextResponse("ok\n", headers={"cache-control": "no-store"})
