"""The index server under load and in trouble: many clients at once, kill -9 during uploads."""

import asyncio
import hashlib
import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from multiprocessing.connection import Connection
from pathlib import Path

import httpx2
import pytest

from builder.publish.index.objects import Folder
from builder.publish.index.repository import Repository
from builder.publish.server.app import finish_interrupted, make_app, open_socket, run
from builder.publish.server.tokens import Tokens
from tests.conftest import PATIENCE, wait_until
from tests.fixtures.index_server import running
from tests.fixtures.killed import begin, context_of, enough, seeded
from tests.unit.loopback import pure_wheel
from tests.unit.publish.index.make import checked, ready
from tests.unit.publish.server.client import form_of

JSON = {"accept": "application/vnd.pypi.simple.v1+json"}
#: Kills of the server; BUILDFARM_KILLS=50 makes a longer test.
KILLS = int(os.environ.get("BUILDFARM_KILLS", "15"))
DOWNLOADS, UPLOADS, PUBLISHED = 500, 50, 10


async def _upload(client: httpx2.AsyncClient, auth: tuple[str, str], wheel: Path) -> int:
    files = {"content": (wheel.name, wheel.read_bytes())}
    response = await client.post("/legacy/", data=form_of(wheel), files=files, auth=auth)
    return response.status_code


async def _get(client: httpx2.AsyncClient, url: str) -> httpx2.Response:
    """As pip and uv do: once more if the server has closed the idle connection, before it answered anything."""
    try:
        return await client.get(url, headers=JSON)
    except httpx2.RemoteProtocolError as error:
        if "without sending a response" not in str(error):
            raise
        return await client.get(url, headers=JSON)


async def _download(client: httpx2.AsyncClient, number: int) -> str:
    """Download one of the listed wheels, and compare it with its hash."""
    page = (await _get(client, f"/{('simple', 'cu130')[number % 2]}/my-ext/")).json()
    file = page["files"][number % len(page["files"])]
    wheel = await _get(client, f"/simple/my-ext/{file['url']}")
    metadata = await _get(client, f"/simple/my-ext/{file['url']}.metadata")
    assert (wheel.status_code, metadata.status_code) == (200, 200)
    assert hashlib.sha256(wheel.content).hexdigest() == file["hashes"]["sha256"]
    assert hashlib.sha256(metadata.content).hexdigest() == file["core-metadata"]["sha256"]
    return str(file["filename"])


async def _uploads(url: str, auth: tuple[str, str], wheels: list[Path]) -> list[int]:
    async with httpx2.AsyncClient(base_url=url, timeout=PATIENCE) as client:
        return await asyncio.gather(*(_upload(client, auth, wheel) for wheel in wheels))


async def _downloads(url: str) -> list[str]:
    async with AsyncExitStack() as stack:
        # A client looks at all its connections for each request, so one client for all of them is slow.
        clients = [httpx2.AsyncClient(base_url=url, timeout=PATIENCE) for _ in range(DOWNLOADS // 25)]
        for client in clients:
            await stack.enter_async_context(client)
        return await asyncio.gather(*(_download(clients[number // 25], number) for number in range(DOWNLOADS)))


def test_downloads_and_uploads_by_two_servers_while_publishing(tmp_path: Path) -> None:
    root = tmp_path / "index"
    repository = Repository(Folder(root))
    repository.add(ready(tmp_path, version="0.1+cu130"))
    names = [("my_ext", "other_ext")[number % 2] for number in range(UPLOADS)]
    wheels = [pure_wheel(tmp_path, name, f"1.{number}+cu130") for number, name in enumerate(names)]
    with running(root) as server, running(root) as other, ThreadPoolExecutor(4) as clients:
        auth = ("__token__", Tokens(root).add("ci", ("upload",), None)[0])
        published = clients.submit(
            lambda: [repository.add(ready(tmp_path, version=f"2.{number}+cu130")) for number in range(PUBLISHED)]
        )
        uploaded = [
            clients.submit(asyncio.run, _uploads(url, auth, half))
            for url, half in ((server.url, wheels[::4] + wheels[1::4]), (other.url, wheels[2::4] + wheels[3::4]))
        ]
        downloaded = clients.submit(lambda: asyncio.run(_downloads(server.url)))
        assert published.result() == [True] * PUBLISHED
        assert [status for half in uploaded for status in half.result()] == [200] * UPLOADS
        assert len(set(downloaded.result())) > 1  # the downloads saw the index grow
        log = server.log.read_text()
        assert server.stop() == 0
    assert '" 500' not in log  # both servers write it
    check = checked(repository)
    assert (check.wheels, check.faults, check.finished) == (1 + UPLOADS + PUBLISHED, (), ())


def _serve(root: Path, begun: Connection) -> None:
    """A server in a process of its own, which starts faster than `buildfarm serve` and sends its port."""
    finish_interrupted(root)
    listening = open_socket("127.0.0.1", 0)
    begun.send(listening.getsockname()[1])
    run(make_app(root), listening)


def _try_upload(client: httpx2.Client, secret: str, wheel: Path) -> bool:
    try:
        response = client.post(
            "/legacy/",
            data=form_of(wheel),
            files={"content": (wheel.name, wheel.read_bytes())},
            auth=("__token__", secret),
        )
    except httpx2.TransportError:
        return False
    assert response.status_code == 200, response.text
    return True


def test_a_killed_server_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, temporary = tmp_path / "index", tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    secret = Tokens(root).add("ci", ("upload",), None)[0]
    repository = Repository(Folder(root))
    seed, context = seeded(), context_of(__name__)
    known: set[str] = set()
    kills = killed_while_busy = 0
    while not enough(kills, killed_while_busy, wanted=KILLS, of=KILLS // 4 + 1):
        kills += 1
        files = {"x.bin": seed.randbytes(500_000)}
        wheels = [
            pure_wheel(tmp_path / "wheels", f"my_ext{index % 2}", f"{kills}.{index}", files) for index in range(8)
        ]
        process, port = begin(context, _serve, root)
        with (
            httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE) as client,
            ThreadPoolExecutor(4) as threads,
        ):
            uploads = [threads.submit(_try_upload, client, secret, wheel) for wheel in wheels]
            first = uploads[seed.randrange(len(uploads))]
            wait_until(first.done, "the end of an upload")
            time.sleep(seed.random() * 0.05)
            process.kill()
            process.join()
        done = [upload.result() for upload in uploads]
        killed_while_busy += 0 < sum(done) < len(done)
        known |= {wheel.name for wheel, ok in zip(wheels, done, strict=True) if ok}
    finish_interrupted(root)
    check = checked(repository)
    assert (check.faults, check.finished) == ((), ())
    listed = {entry.filename for project in repository.projects() for entry in repository.listed(project)}
    assert known <= listed
    left = [path for path in temporary.rglob("*") if path.is_file()]
    assert left == [], "the uploads of killed servers had no name"
