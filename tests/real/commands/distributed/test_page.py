"""The certificates of the page about several machines, and its compose file."""

import asyncio
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import dask
import pytest
import yaml
from distributed.comm.core import connect, listen
from distributed.security import Security

from tests.conftest import PATIENCE, lacking
from tests.unit.commands.distributed.test_scheduler import FILES, block


def certificates(folder: Path) -> None:
    """Run the page's commands of openssl."""
    if not shutil.which("openssl"):
        lacking("openssl is not there")
    subprocess.run(["bash", "-e", "-c", block("openssl req -x509")], cwd=folder, check=True, capture_output=True)


def security_of(folder: Path, machine: str) -> Security:
    """Dask's settings from the file that the page shows, with the files of this machine."""
    text = block("distributed:").replace("/etc/buildfarm/machine", str(folder / machine))
    settings = yaml.safe_load(text.replace("/etc/buildfarm", str(folder)))
    with dask.config.set(dask.config.merge(dask.config.config, settings)):
        return Security()  # type: ignore[no-untyped-call]


async def said(server: Security, client: Security) -> object:
    """What a client's message becomes that goes to a scheduler and back."""

    async def answer(comm: Any) -> None:
        await comm.write(("heard", await comm.read()))

    async with listen("tls://127.0.0.1:0", answer, **server.get_listen_args("scheduler")) as listener:  # type: ignore[no-untyped-call]
        comm = await connect(listener.contact_address, timeout=PATIENCE, **client.get_connection_args("client"))  # type: ignore[no-untyped-call]
        await comm.write("hello")
        heard = await asyncio.wait_for(comm.read(), PATIENCE)
        await comm.close()
        return heard


def test_the_certificates_of_the_page_connect_machines_and_no_others(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for folder in (ours, theirs):
        folder.mkdir()
        certificates(folder)
    scheduler = security_of(ours, "machine1")
    assert scheduler.require_encryption
    assert asyncio.run(said(scheduler, security_of(ours, "laptop"))) == ("heard", "hello")
    with pytest.raises(OSError, match=r"(?i)certificate|handshake|closed|alert"):
        asyncio.run(said(scheduler, security_of(theirs, "laptop")))


def test_compose_file_fits_its_schema() -> None:
    program = Path(sys.executable).parent / "check-jsonschema"
    if not program.is_file():
        lacking("check-jsonschema is not there")
    argv = [str(program), "--builtin-schema", "vendor.compose-spec", str(FILES / "compose.yaml")]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
