"""Uploads: what is accepted, and the sentence for each refusal."""

import errno
import os
import random
import socket
import zipfile
from pathlib import Path

import pytest

from builder.publish.index.levels import Level
from builder.publish.index.new_wheel import new_wheel
from builder.publish.index.objects import Folder
from builder.publish.index.repository import Repository
from builder.publish.server import app
from builder.wheelfile import limits
from tests.conftest import PATIENCE
from tests.fixtures.servers import running
from tests.unit.loopback import pure_wheel
from tests.unit.publish.index.make import CELL, ready
from tests.unit.publish.server.client import Client, form_of


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Client:
    monkeypatch.setattr(app, "MAX_SIZE", 100_000)
    return Client(tmp_path / "index")


def test_an_uploaded_wheel_is_published_once(client: Client, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    auth = client.token()
    wheel = pure_wheel(tmp_path, "my_ext", "1.0+cu130")
    assert client.upload(wheel, auth).text == "published\n"
    assert client.upload(wheel, auth).text == "already published\n"
    assert "an upload with the token ci: published" in " ".join(capfd.readouterr().err.split())
    page = client.get("/cu130/my-ext/").text
    assert wheel.name in page
    assert "not tested" in page
    (entry,) = Repository(Folder(client.root)).entries("my-ext")
    assert client.get("/" + entry.path).content == wheel.read_bytes()
    assert entry.farm
    assert (entry.farm.cells, entry.farm.built_here) == ({}, False)


def test_an_upload_keeps_the_proofs_of_a_published_wheel(client: Client, tmp_path: Path) -> None:
    new = ready(tmp_path)
    repository = Repository(Folder(client.root))
    repository.add(new)
    assert client.upload(new.wheel, client.token()).text == "already published\n"
    repository.add(new_wheel(new.wheel, []), update=False)  # an upload that has overlapped with `publish`
    assert [entry.farm and entry.farm.cells for entry in repository.entries("my-ext")] == [{CELL: "cpu"}]


@pytest.mark.parametrize("name", ["My_Ext-1.0-py3-none-any.whl", "my_ext-1.0.0-py3-none-any.whl"])
def test_another_spelling_of_a_published_wheel(client: Client, tmp_path: Path, name: str) -> None:
    auth = client.token()
    client.upload(pure_wheel(tmp_path, "my_ext", "1.0"), auth)
    project, version = name.split("-")[:2]
    other = pure_wheel(tmp_path, project, version, {"other.py": ""})
    client.refuses(409, "under the name my_ext-1.0-py3-none-any.whl", other, auth)


@pytest.mark.parametrize("digest", ["0" * 64, ""])
def test_the_form_must_have_the_hash_of_the_file(client: Client, tmp_path: Path, digest: str) -> None:
    wheel = pure_wheel(tmp_path, "my_ext", "1.0")
    client.refuses(400, "the sha256 of the file is", wheel, client.token(), {"sha256_digest": digest})


@pytest.mark.parametrize(
    "name",
    [
        "../../evil-1.0-py3-none-any.whl",
        "/etc/evil-1.0-py3-none-any.whl",
        "..\\evil-1.0-py3-none-any.whl",
        ".evil-1.0-py3-none-any.whl",
        "evil-1.0.tar.gz",
        "evil.whl",
        "",
        "x" * 200 + "-1.0-py3-none-any.whl",
    ],
)
def test_file_names(client: Client, tmp_path: Path, name: str) -> None:
    wheel = pure_wheel(tmp_path, "evil", "1.0")
    files = {"content": (name, wheel.read_bytes())}
    refused = client.post("/legacy/", auth=client.token(), data=form_of(wheel), files=files)
    assert refused.status_code == 400
    assert client.published() == {}
    assert not list(tmp_path.rglob("evil-1.0.tar.gz"))


def test_the_metadata_must_agree_with_the_file_name(client: Client, tmp_path: Path) -> None:
    wheel = pure_wheel(tmp_path, "other", "1.0")
    renamed = wheel.rename(tmp_path / "my_ext-1.0-py3-none-any.whl")
    assert str(client.root) not in client.refuses(400, "METADATA says other 1.0", renamed, client.token())


def test_damaged_wheels(client: Client, tmp_path: Path) -> None:
    wheel = pure_wheel(tmp_path, "my_ext", "1.0")
    data = wheel.read_bytes()
    auth = client.token()
    for damaged in (b"", b"no zip", data[:-30]):
        wheel.write_bytes(damaged)
        client.refuses(400, "", wheel, auth)


def test_wheels_that_unpack_to_too_much(client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = tmp_path / "bomb-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb-1.0.dist-info/METADATA", b"Name: bomb\nVersion: 1.0\n" + b"x" * 2**26)
    auth = client.token()
    assert wheel.stat().st_size < 100_000
    client.refuses(400, "METADATA unpacks to", wheel, auth)
    monkeypatch.setattr(limits, "MAX_FILE_LIST", 200)
    client.refuses(400, "list of files", pure_wheel(tmp_path, "many", "1.0"), auth)


@pytest.mark.parametrize(
    ("project", "name", "more", "sentence"),
    [
        ("my_ext", b"my_\xff", b"", "name is invalid"),
        ("my_ext", b"my_ext\nVersion: 1.0\xff", b"", "Invalid version"),
        ("_", b"_", b"", "name is invalid"),
        ("my_", b"my_", b"", "name is invalid"),
        ("my_ext", b"my_ext", b"Requires-Python: three", "Requires-Python of METADATA is not valid"),
        ("my_ext", b"my_ext", b"Requires-Python: >=3\xff", "Requires-Python of METADATA is not valid"),
        ("my_ext", b"my_ext", b"Requires-Python: " + b">=3," * 200, "Requires-Python of METADATA is not valid"),
        ("my_ext", b"my_ext", b"a:\n" * 1_400_000, "METADATA unpacks to"),
    ],
)
def test_metadata_that_would_damage_the_pages(
    client: Client, tmp_path: Path, project: str, name: bytes, more: bytes, sentence: str
) -> None:
    wheel = tmp_path / f"{project}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        metadata = b"Metadata-Version: 2.1\nName: %s\nVersion: 1.0\n%s\n" % (name, more)
        archive.writestr(f"{project}-1.0.dist-info/METADATA", metadata)
    client.refuses(400, sentence, wheel, client.token())


def test_damage_at_any_place_is_never_an_error_of_the_server(client: Client, tmp_path: Path) -> None:
    """One byte of a wheel is changed at many places: the server accepts the file or refuses it."""
    seed = random.Random(5)
    data = pure_wheel(tmp_path, "my_ext", "1.0").read_bytes()
    auth = client.token()
    codes = set()
    for _ in range(60):
        place = seed.randrange(len(data))
        wheel = tmp_path / "my_ext-1.0-py3-none-any.whl"
        wheel.write_bytes(data[:place] + seed.randbytes(1) + data[place + 1 :])
        codes.add(client.upload(wheel, auth).status_code)
    assert codes <= {200, 400, 409}
    assert 400 in codes


def test_the_same_bytes_under_two_names(client: Client, tmp_path: Path) -> None:
    auth = client.token()
    one = pure_wheel(tmp_path, "my_ext", "1.0")
    other = one.with_name("my_ext-1.0-py2.py3-none-any.whl")
    other.write_bytes(one.read_bytes())
    for wheel in (one, other):
        assert client.upload(wheel, auth).status_code == 200
    repository = Repository(Folder(client.root))
    repository.remove(other.name)
    (entry,) = repository.entries("my-ext")
    assert client.get("/" + entry.path).content == one.read_bytes()
    repository.remove(one.name)
    assert not list(client.root.rglob("my_ext*"))


def test_large_files(client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    auth = client.token()
    wheel = pure_wheel(tmp_path, "my_ext", "1.0", {"my_ext.py": "x" * 100_001})
    client.refuses(413, "larger than 100000 bytes", wheel, auth)
    client.refuses(413, "", wheel, auth, {"comment": "x" * 2**24})  # from the Content-Length
    monkeypatch.setattr(app, "_FORM_SIZE", 100)
    client.refuses(413, "", pure_wheel(tmp_path, "small", "1.0"), auth, {"comment": "x" * 10**5})


FORM, FIELD = "multipart/form-data; boundary=b", b'--b\r\nContent-Disposition: form-data; name="name"\r\n\r\nx'


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"", "application/json", 415),
        (b"", "multipart/form-data", 400),
        (b"", FORM, 400),
        (b"nonsense", FORM, 400),
        (FIELD + b"\r\n--b--\r\n", FORM, 400),
        (FIELD, FORM, 400),
        (b"", f"multipart/form-data; boundary={'b' * 1000}", 400),
    ],
)
def test_damaged_forms(client: Client, body: bytes, kind: str, status: int) -> None:
    response = client.post("/legacy/", auth=client.token(), content=body, headers={"content-type": kind})
    assert (response.status_code, client.published()) == (status, {})


def test_who_may_upload(client: Client, tmp_path: Path) -> None:
    wheel = pure_wheel(tmp_path, "my_ext", "1.0")
    _, unknown = client.token()
    for auth in (None, ("__token__", "x"), ("ci", unknown)):
        client.refuses(401, "", wheel, auth)
    client.refuses(403, "", wheel, client.token("read", name="reader"))
    client.refuses(403, "does not allow uploads of my-ext", wheel, client.token("upload:other", name="other"))
    assert client.upload(wheel, client.token("upload:My_Ext", name="mine")).status_code == 200


def test_the_bar_holds_for_uploads(tmp_path: Path) -> None:
    wheel = pure_wheel(tmp_path, "my_ext", "1.0")
    client = Client(tmp_path / "index", required=[Level.CPU])
    client.refuses(403, "do not show what the index requires", wheel, client.token())


@pytest.mark.parametrize(
    ("number", "sentence"),
    [
        (errno.ENOSPC, "the server cannot write to the folder of the index: No space left on device"),
        (errno.EROFS, "the server cannot write to the folder of the index: Read-only file system"),
        (errno.EACCES, "the server cannot write to the folder of the index: Permission denied"),
        (errno.EPERM, "the server cannot write to the folder of the index: Operation not permitted"),
    ],
)
def test_an_index_that_cannot_be_written(
    client: Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    number: int,
    sentence: str,
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number), "/srv/wheels/files")

    auth = client.token()
    monkeypatch.setattr(Folder, "create", refuse)
    refused = client.upload(pure_wheel(tmp_path, "my_ext", "1.0"), auth)
    assert (refused.status_code, refused.text) == (507, f"{sentence}\n")
    assert " ".join(capfd.readouterr().err.split()) == f"warning: an upload failed: {sentence}"


@pytest.mark.parametrize("expect", ["", "Expect: 100-continue"])
def test_the_answer_to_a_refused_upload_arrives(tmp_path: Path, expect: str) -> None:
    """A client sends all of it and reads then, or asks before it sends."""
    size = 20_000_000  # more than the buffers of two sockets hold
    lines = ["POST /legacy/ HTTP/1.1", "Host: x", f"Content-Length: {size}", "Connection: close"]
    lines += [expect] if expect else []
    with (
        running(tmp_path / "index") as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as connection,
    ):
        connection.sendall("\r\n".join([*lines, "", ""]).encode() + (b"" if expect else b"x" * size))
        assert connection.makefile("rb").readline().startswith(b"HTTP/1.1 401 ")
