"""A refused upload: the client sends all of it, and gets the answer."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tests.conftest import PATIENCE
from tests.fixtures.index_server import running

SIZE = 20_000_000  # more than the buffers of two sockets hold


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with running(tmp_path_factory.mktemp("index")) as server:
        yield server.port


def ask(port: int, *headers: str, body: bytes) -> bytes:
    """Send the whole of a request, then read the answer."""
    lines = ("POST /legacy/ HTTP/1.1", "Host: x", f"Content-Length: {SIZE}", *headers, "", "")
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection:
        connection.sendall("\r\n".join(lines).encode() + body)
        answer = connection.makefile("rb")
        return answer.readline() + answer.read()


def test_the_answer_to_a_refused_upload_arrives(port: int) -> None:
    assert ask(port, "Connection: close", body=b"x" * SIZE).startswith(b"HTTP/1.1 401 ")


def test_a_client_that_asks_before_it_sends_is_answered_at_once(port: int) -> None:
    assert ask(port, "Connection: close", "Expect: 100-continue", body=b"").startswith(b"HTTP/1.1 401 ")
