"""Whether a Redis can be the shared compiler cache. sccache itself waits ten seconds and does not say what is wrong."""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Mapping
from urllib.parse import urlsplit

#: Seconds until a Redis that does not answer is given up.
_SECONDS = 5.0

#: Variables with a secret.
_SECRET = re.compile(r".*(?:PASSWORD|TOKEN|SECRET|ACCESS_KEY|CONNECTION_STRING).*")


def redis_problem(variables: Mapping[str, str]) -> str:
    """Why the Redis of these variables cannot be used, as a clause; empty if it answers, or if they name none."""
    endpoint = variables.get("SCCACHE_REDIS_ENDPOINT", "")
    try:
        url = urlsplit(endpoint if "://" in endpoint else f"redis://{endpoint}")
        host, port = url.hostname, url.port or 6379
    except ValueError:
        return "the value of SCCACHE_REDIS_ENDPOINT is no URL"
    if not endpoint or not host or url.scheme not in {"redis", "rediss", "tcp"}:
        return ""
    login = [variables.get(f"SCCACHE_REDIS_{name}", "") for name in ("USERNAME", "PASSWORD")]
    try:
        with socket.create_connection((host, port), _SECONDS) as plain:
            verify = url.fragment != "insecure"
            with _secured(plain, host, verify=verify) if url.scheme == "rediss" else plain as connection:
                answer = _ask(connection, [word for word in login if word])
    except OSError as error:
        return f"Redis at {host}:{port} does not answer ({error})"
    if answer.startswith("-WRONGPASS"):
        return f"Redis at {host}:{port} refuses the user name or the password"
    if answer.startswith("-NOAUTH"):
        return f"Redis at {host}:{port} needs a password, and SCCACHE_REDIS_PASSWORD is not set"
    return "" if answer.startswith("+") else f"Redis at {host}:{port} refuses: {answer.lstrip('-')}"


def without_secrets(text: str, variables: Mapping[str, str]) -> str:
    """A text without the values of those variables that hold a secret."""
    for name, value in variables.items():
        if value and _SECRET.fullmatch(name):
            text = text.replace(value, "***")
    return text


def _secured(plain: socket.socket, host: str, *, verify: bool) -> ssl.SSLSocket:
    context = ssl.create_default_context()
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context.wrap_socket(plain, server_hostname=host)


def _ask(connection: socket.socket, login: list[str]) -> str:
    """The first line of the answer to AUTH with a user and a password, or to PING without them."""
    words = [word.encode() for word in (["AUTH", *login] if login else ["PING"])]
    lengths = b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)
    connection.sendall(b"*%d\r\n%s" % (len(words), lengths))
    with connection.makefile("rb") as stream:
        line = stream.readline(4096)
    if not line:
        raise ConnectionError("it closed the connection")
    return line.decode(errors="replace").strip()
