"""The URL of an index server, and the token for it."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from urllib.parse import urlsplit

from requests.utils import get_netrc_auth

from builder.errors import UsageError
from builder.publish.remote.fields import UPLOAD_PATH

#: The variable with the token.
VARIABLE = "BUILDFARM_TOKEN"
_OTHER_PATHS = (f"/{UPLOAD_PATH}", "/simple")


def root_url(url: str) -> str:
    """The URL of the root of an index server, with a final slash.

    Raises UsageError for a URL with a password, for HTTP to another machine, and for the URL of a page.
    """
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        parts.port  # noqa: B018 - raises ValueError
    except ValueError:
        raise UsageError("this is no URL", where=url) from None
    if not host or parts.query or parts.fragment:
        raise UsageError("this is no URL of an index; write it like https://wheels.example/", where=url)
    if "@" in parts.netloc:
        raise UsageError(
            "a password in the URL is visible to every user of this machine, as an argument of the command",
            where=url,
            hints=[f"put the token into the environment variable {VARIABLE}, and leave it out of the URL"],
        )
    if parts.scheme == "http" and not _is_loopback(host):
        raise UsageError(
            "without TLS, everybody on the network can read the token that is sent",
            where=url,
            hints=["use https://; `buildfarm serve --tls-cert FILE --tls-key FILE` serves it"],
        )
    path = parts.path.rstrip("/")
    if path.endswith(_OTHER_PATHS):
        root = parts._replace(path=f"{path.rpartition('/')[0]}/").geturl()
        raise UsageError("this is a page of the index, and not its root", where=url, hints=[f"name the root: {root}"])
    return parts._replace(path=f"{path}/").geturl()


def token_for(url: str, environ: Mapping[str, str] = os.environ) -> str:
    """The token from BUILDFARM_TOKEN, or from the netrc file for the host. Raises UsageError without one."""
    login = get_netrc_auth(url)
    secret = environ.get(VARIABLE, "").strip() or (login[1] if login and login[0] == "__token__" else "")
    if secret and not (secret.isascii() and secret.isprintable()):
        raise UsageError("a token has only ASCII letters, digits, `-` and `_`", where=VARIABLE)
    if secret:
        return secret
    raise UsageError(
        "an upload to an index server needs a token",
        where=url,
        hints=[
            "the owner of the index makes one with `buildfarm token add DIR --name NAME --scope prove`",
            f"put it into the environment variable {VARIABLE}",
            f"or put it into ~/.netrc: machine {urlsplit(url).hostname} login __token__ password TOKEN",
        ],
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
