"""What the server answers when it refuses a request, and who sent a request."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping

from starlette.exceptions import HTTPException
from starlette.requests import Request

from builder.publish.server.tokens import Token, Tokens

#: A header that never leaves the server: `protocol.py` makes it the text of the status line, which twine prints.
REASON = "buildfarm-reason"
_LONGEST_REASON = 300
#: The name under which a request's token is kept for the access log.
TOKEN = "buildfarm.token"  # noqa: S105 - not a secret


def refusal(status: int, sentence: str, headers: Mapping[str, str] | None = None) -> HTTPException:
    """The error that answers a request with this status and this sentence."""
    reason = "".join(char if " " <= char <= "~" else "?" for char in sentence)[:_LONGEST_REASON]
    return HTTPException(status, f"{sentence}\n", {REASON: reason, **(headers or {})})


def unauthorized(sentence: str) -> HTTPException:
    """The error that asks for a token."""
    return refusal(401, sentence, {"WWW-Authenticate": 'Basic realm="buildfarm"'})


def token_of(request: Request, tokens: Tokens) -> Token | None:
    """The token of a request: the password of the user `__token__`, or a bearer token. None without a valid token."""
    secret = _secret(request.headers.get("authorization", ""))
    token = tokens.find(secret) if secret else None
    if token:
        request.scope[TOKEN] = token.name
    return token


def _secret(header: str) -> str:
    scheme, _, value = header.partition(" ")
    if scheme.lower() == "bearer":
        return value.strip()
    if scheme.lower() == "basic":
        try:
            user, _, password = base64.b64decode(value.strip(), validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            return ""
        return password if user == "__token__" else ""
    return ""
