"""Connections that cannot be made: one sentence each, and the exit code."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
import subprocess
from pathlib import Path
from typing import Any, cast

import dask
import pytest

from builder.commands.distributed import connection
from builder.commands.distributed.connection import connect, quiet_dask, reach, security_for
from builder.commands.distributed.options import WorkersOptions
from builder.errors import Code, Exit
from tests.conftest import BUILDFARM
from tests.refused import refused


def check(address: str, *, plain_tcp: bool = False) -> None:
    WorkersOptions(scheduler=address, plain_tcp=plain_tcp).check_workers()


@pytest.mark.parametrize(("listens", "reason"), [(False, "Connect call failed"), (True, "1 s have passed")])
def test_nothing_answers(listens: bool, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "CONNECT_SECONDS", 1.0)
    with socket.socket() as taken:  # so that no other program listens there
        taken.bind(("127.0.0.1", 0))
        if listens:
            taken.listen()
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        with refused(Code.NETWORK_UNREACHABLE, reason) as caught:
            connect(address, 1.0)
    assert (caught.value.exit_code, caught.value.where) == (Exit.TOOL_MISSING, address)


@pytest.mark.parametrize(
    "address",
    [
        "host:8786", "http://127.0.0.1:8786", "tcp://127.0.0.1", "tcp://:8786", "tcp://127.0.0.1:99999",
        "tcp://127.0.0.1:8786/x", "tcp://127.0.0.1:8786?x", "tcp://me@127.0.0.1:8786", "tcp://[::1", "tls://",
    ],
)  # fmt: skip
def test_an_address_that_is_none(address: str) -> None:
    with refused(Code.VALUE_INVALID) as caught:
        check(address, plain_tcp=True)
    assert caught.value.exit_code is Exit.USAGE


def test_another_machine_without_tls_wants_an_option() -> None:
    with refused(Code.NOT_ENCRYPTED):
        check("tcp://192.0.2.1:8786")
    for address, plain in (("tcp://192.0.2.1:8786", True), ("tls://192.0.2.1:8786", False), ("tcp://[::1]:1", False)):
        check(address, plain_tcp=plain)


def test_dask_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builder.commands.distributed.options.find_spec", lambda _: None)
    with refused(Code.PACKAGE_MISSING) as caught:
        check("tcp://127.0.0.1:8786")
    assert caught.value.exit_code is Exit.TOOL_MISSING


@pytest.mark.parametrize("content", [None, "", "no certificate"], ids=["no setting", "no file", "no certificate"])
def test_certificates_that_cannot_be_used(content: str | None, tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    names = ("ca-file", "client.cert", "client.key")
    settings = {} if content is None else {f"distributed.comm.tls.{name}": str(file) for name in names}
    if content:
        file.write_text(content)
    with dask.config.set(settings), refused(Code.CERTIFICATE_NOT_USABLE):
        security_for("tls://127.0.0.1:8786")


def test_plain_tcp_although_the_configuration_requires_tls() -> None:
    with dask.config.set({"distributed.comm.require-encryption": True}), refused(Code.NOT_ENCRYPTED) as caught:
        security_for("tcp://127.0.0.1:8786")
    assert caught.value.hints[0].startswith("write tls://127.0.0.1:8786")


def test_a_scheduler_without_tls() -> None:
    class Tls:
        def get_connection_args(self, _: str) -> dict[str, object]:
            return {"ssl_context": ssl.create_default_context(), "require_encryption": True}

    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello" * 9)
        await writer.drain()
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(greet, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            with refused(Code.CERTIFICATE_NOT_USABLE) as caught:
                await reach(f"tls://127.0.0.1:{port}", cast("Any", Tls()))
            assert any("--protocol tls" in hint for hint in caught.value.hints)

    asyncio.run(run())


def test_a_file_of_dask_that_is_no_yaml(tmp_path: Path) -> None:
    file = tmp_path / "farm.yaml"
    file.write_text("distributed:\n  comm: [\n")
    argv, env = [str(BUILDFARM), "worker", "tcp://127.0.0.1:8786"], os.environ | {"DASK_CONFIG": str(tmp_path)}
    ran = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert ran.returncode == Exit.USAGE
    said = " ".join(ran.stderr.split())
    for words in ("error[file-invalid]: Dask cannot read its configuration: ", str(file), "line 3"):
        assert words in said


def test_dask_prints_nothing() -> None:
    quiet_dask()
    for name in ("distributed", "distributed.client", "tornado.application", "asyncio"):
        assert not logging.getLogger(name).isEnabledFor(logging.ERROR)
