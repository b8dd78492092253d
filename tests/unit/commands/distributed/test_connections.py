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
from builder.commands.distributed.options import RemoteOptions
from builder.commands.smoke import SmokeOptions
from builder.errors import BuildfarmError, Code, Exit, MissingToolError, UsageError
from tests.conftest import BUILDFARM, coded
from tests.refused import refused


def workers(address: str, *, plain_tcp: bool) -> RemoteOptions | None:
    return SmokeOptions(scheduler=address, plain_tcp=plain_tcp).remote


def fails(address: str) -> BuildfarmError:
    with pytest.raises(MissingToolError) as caught:
        asyncio.run(connect(address, security_for(address)))
    assert caught.value.exit_code is Exit.TOOL_MISSING
    assert caught.value.where == address
    return caught.value


def test_nothing_listens() -> None:
    with socket.socket() as taken:  # so that no other program listens there
        taken.bind(("127.0.0.1", 0))
        error = fails(f"tcp://127.0.0.1:{taken.getsockname()[1]}")
    assert error.sentence == "no scheduler listens at this address"


def test_a_program_that_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "CONNECT_SECONDS", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        error = fails(f"tcp://127.0.0.1:{server.getsockname()[1]}")
    assert error.sentence == "the scheduler does not answer within 1 s"


@pytest.mark.parametrize(
    "address",
    [
        "",
        "host:8786",
        "http://127.0.0.1:8786",
        "tcp://127.0.0.1",
        "tcp://:8786",
        "tcp://127.0.0.1:99999",
        "tcp://127.0.0.1:8786/x",
        "tcp://127.0.0.1:8786?x",
        "tcp://me@127.0.0.1:8786",
        "tcp://[::1",
        "tls://",
    ],
)
def test_an_address_that_is_none(address: str) -> None:
    if not address:
        assert workers(address, plain_tcp=False) is None
        return
    with pytest.raises(UsageError, check=coded(Code.VALUE_INVALID)) as caught:
        workers(address, plain_tcp=True)
    assert caught.value.exit_code is Exit.USAGE


def test_another_machine_without_tls_wants_an_option() -> None:
    with refused(Code.NOT_ENCRYPTED):
        workers("tcp://192.0.2.1:8786", plain_tcp=False)
    for address, plain in (("tcp://192.0.2.1:8786", True), ("tls://192.0.2.1:8786", False), ("tcp://[::1]:1", False)):
        assert workers(address, plain_tcp=plain) is not None


def test_dask_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builder.commands.distributed.options.find_spec", lambda _: None)
    with refused(Code.PACKAGE_MISSING) as caught:
        workers("tcp://127.0.0.1:8786", plain_tcp=False)
    assert caught.value.exit_code is Exit.TOOL_MISSING


def test_certificates_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(MissingToolError, check=coded(Code.CERTIFICATE_NOT_USABLE)):
        security_for("tls://127.0.0.1:8786")
    file = tmp_path / "ca.pem"
    names = ("ca-file", "client.cert", "client.key")
    with dask.config.set({f"distributed.comm.tls.{name}": str(file) for name in names}):
        with pytest.raises(MissingToolError, check=coded(Code.CERTIFICATE_NOT_USABLE)):
            security_for("tls://127.0.0.1:8786")
        file.write_text("no certificate")
        with pytest.raises(MissingToolError, check=coded(Code.CERTIFICATE_NOT_USABLE)):
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
            with refused(Code.SCHEDULER_REFUSED) as caught:
                await reach(f"tls://127.0.0.1:{port}", cast("Any", Tls()))
            assert any("--protocol tls" in hint for hint in caught.value.hints)

    asyncio.run(run())


def test_a_file_of_dask_that_is_no_yaml(tmp_path: Path) -> None:
    file = tmp_path / "farm.yaml"
    file.write_text("distributed:\n  comm: [\n")
    ran = subprocess.run(
        [str(BUILDFARM), "worker", "tcp://127.0.0.1:8786"],
        env=os.environ | {"DASK_CONFIG": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == Exit.USAGE
    said = " ".join(ran.stderr.split())
    assert "error[yaml-invalid]: Dask cannot read its configuration: " in said
    assert str(file) in said
    assert "line 3" in said


def test_dask_prints_nothing() -> None:
    quiet_dask()
    for name in ("distributed", "distributed.client", "tornado.application", "asyncio"):
        assert not logging.getLogger(name).isEnabledFor(logging.ERROR)
