"""The user and the token for an index on a web server: where they come from, and to which servers they are sent."""

from __future__ import annotations

import os
from collections.abc import Mapping
from urllib.parse import urlsplit

from requests.utils import get_auth_from_url, get_netrc_auth

from builder.errors import Code, MissingToolError, UsageError
from builder.images.network import ca_bundle, is_loopback

#: The variable with the token.
VARIABLE = "BUILDFARM_TOKEN"
_USER = "__token__"


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


def without_login(url: str) -> str:
    """A URL without user and password."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


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
