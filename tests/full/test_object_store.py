"""An index in a bucket of a real S3 server: the commands, concurrent and killed publishers, installers, errors."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import botocore.session
import pytest

from builder.proof import proofs_path
from builder.publish.index import bucket as bucket_module
from builder.publish.index.bucket import Bucket
from builder.publish.index.repository import ConflictError, NewWheel, Repository
from builder.wheels.toolchain.uv import find_uv
from tests.conftest import ROOT
from tests.fixtures.killed import seeded, together
from tests.fixtures.servers import clean_environment
from tests.unit.conftest import Call
from tests.unit.publish.index.make import checked, ready

KEYS = {"AWS_ACCESS_KEY_ID": "farm", "AWS_SECRET_ACCESS_KEY": "farm-secret", "AWS_DEFAULT_REGION": "us-east-1"}
#: The endpoint of a different S3 server for a run of the tests by hand; it accepts KEYS.
OTHER_SERVER = "BUILDFARM_TEST_S3"
#: moto has an environment of its own: its boto3 and the botocore of s3fs seldom agree, and pip searches for minutes.
MOTO = [str(find_uv()), "run", "--no-project", "--isolated", "--python", sys.executable, "--with", "moto[s3,server]>=5"]
SERVER = ROOT / "tests/fixtures/s3_server.py"


@dataclass(frozen=True)
class ObjectStore:
    """A running S3 server."""

    endpoint: str  # its URL
    website: str  # URL of a web server that answers `FOLDER/` with `FOLDER/index.html`, and reads without keys
    log: Path  # file with a line for each request: method and path

    @property
    def env(self) -> Mapping[str, str]:
        """What a client needs in its environment."""
        return {**KEYS, "AWS_ENDPOINT_URL": self.endpoint}

    def requests(self) -> list[str]:
        """The requests so far; empty for a server that was started by hand."""
        return self.log.read_text().splitlines() if self.log.is_file() else []


@contextlib.contextmanager
def s3_server(folder: Path, *options: str) -> Iterator[ObjectStore]:
    """Serve S3 while the body runs. With `--unconditional`, the server ignores If-None-Match."""
    log = folder / "requests.log"
    endpoint = os.environ.get(OTHER_SERVER, "")
    words = [*MOTO, str(SERVER), str(log), *options, *([endpoint] if endpoint else [])]
    with (folder / "s3.log").open("wb") as output:
        process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=output, text=True, env={**os.environ, **KEYS}, start_new_session=True
        )
    try:
        assert process.stdout
        ports = process.stdout.readline().split()
        assert ports, (folder / "s3.log").read_text()
        yield ObjectStore(endpoint or f"http://127.0.0.1:{ports[0]}", f"http://127.0.0.1:{ports[1]}", log)
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # uv and the server
        process.wait()
        if process.stdout:
            process.stdout.close()


FORK = multiprocessing.get_context("fork")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with s3_server(tmp_path_factory.mktemp("s3")) as store:
        yield store


@pytest.fixture
def client(server: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A client of the S3 server; its address and keys are in the environment."""
    for name, value in server.env.items():
        monkeypatch.setenv(name, value)
    return botocore.session.get_session().create_client("s3")


@pytest.fixture
def place(client: Any) -> str:
    """An empty prefix of a new bucket."""
    name = f"wheels-{uuid4().hex[:8]}"
    client.create_bucket(Bucket=name)
    return f"s3://{name}/team"


def proven(folder: Path, **about: Any) -> NewWheel:
    """A wheel with its proofs beside it."""
    new = ready(folder, **about)
    proofs_path(new.wheel).write_bytes(new.attached[".proofs.json"])
    return new


def publish(call: Call, place: str, new: NewWheel, *options: str) -> tuple[int, str, str]:
    store = new.wheel.parent / "store"
    return call("publish", new.wheel, "--to", place, "--store", store, *options)


def wheels(place: str) -> list[str]:
    """The versions that the page of all wheels lists, after a check that finds no fault."""
    repository = Repository(Bucket(place))
    assert checked(repository).faults == ()
    return sorted(str(entry.version) for entry in repository.listed("my-ext"))


def test_a_wheel_in_a_bucket_is_installed_by_pip_and_uv(
    server: ObjectStore, client: Any, place: str, call: Call, tmp_path: Path
) -> None:
    new = proven(tmp_path, version="1.0+cu130")
    code, out, err = publish(call, place, new)
    assert (code, err) == (0, "")
    assert out.splitlines()[0].startswith("published          my_ext-1.0+cu130-py3-none-any.whl  1 cell: cpu (")
    assert publish(call, place, new)[1].startswith("already published")
    web = f"{server.website}/{place.removeprefix('s3://')}"
    env = clean_environment(tmp_path)
    pip = (sys.executable, "-m", "pip", "install", "--no-cache-dir", "--target")
    uv = (str(find_uv()), "pip", "install", "--python", sys.executable, "--target")
    page = f"{web}/simple/my-ext/index.html"  # without a web server that knows `index.html`
    target_of = ("--torch", "2.11", "--cuda", "13.0", "--python", "3.12")
    code, out, _ = call("resolve", "my_ext", "--index", web, *target_of)
    assert (code, out.splitlines()[0]) == (0, f"{new.wheel.name} (tested in this cell: cpu)")
    code, _, err = call("resolve", "my_ext", "--index", place, *target_of)
    assert (code, "name the URL of the web server" in " ".join(err.split())) == (2, True)
    for number, words in enumerate(
        (
            (*pip, "{}", "--index-url", f"{web}/cu130/"),
            (*uv, "{}", "--default-index", f"{web}/simple/"),
            (*pip, "{}", "--no-index", "--find-links", page),
            (*uv, "{}", "--no-index", "--find-links", page),
        )
    ):
        target = tmp_path / str(number)
        argv = [word.format(target) for word in words]
        subprocess.run([*argv, "my_ext"], env=env, check=True, capture_output=True)
        assert (target / "my_ext.py").is_file()
    name, _, prefix = place.removeprefix("s3://").partition("/")
    (wheel,) = [one["Key"] for one in client.list_objects_v2(Bucket=name)["Contents"] if one["Key"].endswith(".whl")]
    for key, kind, cache in (
        (f"{prefix}/index.html", "text/html; charset=utf-8", "max-age=10"),
        (f"{prefix}/simple/my-ext/index.html", "text/html; charset=utf-8", "max-age=10"),
        (f"{prefix}/simple/my-ext/index.json", "application/vnd.pypi.simple.v1+json", "max-age=10"),
        (f"{wheel}.proofs.json", "application/json", "max-age=10"),
        (wheel, "application/octet-stream", "max-age=31536000, immutable"),
    ):
        about = client.head_object(Bucket=name, Key=key)
        assert (about["ContentType"], about["CacheControl"]) == (kind, cache), key


def test_yank_prune_and_check(place: str, call: Call, tmp_path: Path) -> None:
    for version in ("1.0+cu124", "1.0+cu130", "2.0"):
        assert publish(call, place, proven(tmp_path, version=version))[0] == 0
    assert call("yank", "my_ext==2.0", "--index", place, "--reason", "wrong results")[0] == 0
    repository = Repository(Bucket(place))
    assert 'data-yanked="wrong results"' in repository.objects.read("simple/my-ext/index.html").decode()
    assert call("yank", "my_ext==2.0", "--index", place, "--undo")[0] == 0
    assert "data-yanked" not in repository.objects.read("simple/my-ext/index.html").decode()
    _, out, _ = call("index", "prune", place, "--keep", "1")
    assert out == "".join(f"deleted my_ext-1.0+cu{cuda}-py3-none-any.whl\n" for cuda in (124, 130))
    assert wheels(place) == ["2.0"]
    entry = repository.find("my_ext-2.0-py3-none-any.whl")
    repository.objects.write(entry.path, b"damaged")
    repository.objects.delete(f"{entry.path}.metadata")
    code, out, _ = call("index", "check", place)
    assert code == 1
    assert "the content changed" in out
    assert "whl.metadata: the file is missing" in out
    assert out.endswith("checked: 1 project, 1 wheel, 2 faults\n")


def _add(place: str, new: NewWheel) -> None:
    try:
        Repository(Bucket(place)).add(new)
    except ConflictError:
        sys.exit(7)


@pytest.mark.parametrize("versions", [["1.0"] * 4, ["0.0", "1.0", "2.0", "3.0"]], ids=["one name", "four names"])
def test_publishers_at_once_lose_nothing(place: str, tmp_path: Path, versions: list[str]) -> None:
    """Of different files of one name, one is published."""
    news = [ready(tmp_path / str(one), version=version, text=str(one)) for one, version in enumerate(versions)]
    codes = together(_add, [(place, new) for new in news])
    done = [new.entry.sha256 for code, new in zip(codes, news, strict=True) if code == 0]
    assert set(codes) <= {0, 7}
    assert sorted(done) == sorted(entry.sha256 for entry in Repository(Bucket(place)).entries("my-ext"))
    assert wheels(place) == sorted(set(versions))
    assert Repository(Bucket(place)).objects.names("pending") == []


def test_a_killed_publisher_leaves_nothing_half_seen(place: str, tmp_path: Path) -> None:
    seed = seeded()
    started = time.monotonic()
    _add(place, ready(tmp_path, version="0.0"))
    duration = time.monotonic() - started
    news = [ready(tmp_path, version=f"{number}.0") for number in range(1, 11)]
    repository = Repository(Bucket(place))
    for new in news:
        process = FORK.Process(target=_add, args=(place, new))
        process.start()
        time.sleep(seed.random() * duration)
        assert process.pid
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        published = {entry.filename: entry for entry in repository.entries("my-ext")}
        for entry in repository.listed("my-ext"):  # every link that a page has leads to a whole file
            assert published[entry.filename] == entry
            assert len(repository.objects.read(entry.path)) == entry.size
    listed = wheels(place)  # also finishes what was left undone
    assert listed == sorted(str(entry.version) for entry in repository.entries("my-ext"))
    repository.add(news[-1])  # the next run continues
    assert "10.0" in wheels(place)


def test_a_large_wheel_is_sent_in_parts(
    server: ObjectStore, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_module, "_PART", 5 * 2**20)  # the smallest part that S3 accepts
    large, content = tmp_path / "large.whl", random.Random(1).randbytes(11 * 2**20)
    large.write_bytes(content)
    objects = Bucket(place)
    assert objects.create("files/large.whl", large)
    assert not objects.create("files/large.whl", large)
    with objects.local("files/large.whl") as copy:
        assert copy.read_bytes() == objects.read("files/large.whl") == content
    requests = server.requests()
    assert not requests or len([one for one in requests if "partNumber=" in one]) == 3
    assert not objects._create(objects._key("files/large.whl"), large)  # refused when the last part is there
    assert objects.read("files/large.whl") == content


def test_requests_do_not_grow_with_the_number_of_projects(server: ObjectStore, place: str, tmp_path: Path) -> None:
    if not server.requests():
        pytest.skip(f"{OTHER_SERVER} names a server that counts no requests")
    counts = []
    repository = Repository(Bucket(place))
    for number in range(4):
        before = len(server.requests())
        repository.add(ready(tmp_path, f"ext{number}"))
        counts.append(len(server.requests()) - before)
    assert counts[1] == counts[2] == counts[3] <= 50, counts


def test_errors_have_one_sentence_and_a_hint(
    place: str, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = proven(tmp_path)

    def said(place: str) -> tuple[int, str]:
        code, _, err = publish(call, place, new)
        assert "Traceback" not in err
        return code, " ".join(err.split())

    code, text = said("s3://no-such-bucket-here/team")
    assert (code, "has no bucket of this name" in text) == (2, True)
    assert said("s3://")[0] == said("gs://bucket/team")[0] == said("https://wheels.example/")[0] == 2
    code, text = said("gs://bucket/team")
    assert "in a folder or in s3:// only hint: most object stores speak S3" in text
    code, _, err = call("index", "check", f"{place}-2")
    assert (code, "contains no index" in err) == (2, True)
    with monkeypatch.context() as other:
        other.setenv("AWS_ACCESS_KEY_ID", "wrong")
        code, text = said(place)
        assert (code, "refuses the request" in text, "hint: set AWS_ACCESS_KEY_ID" in text) == (2, True, True)
        other.delenv("AWS_ACCESS_KEY_ID")
        other.delenv("AWS_SECRET_ACCESS_KEY")
        other.setenv("AWS_EC2_METADATA_DISABLED", "true")
        other.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
        code, text = said(place)
        assert (code, "there are no keys for the object store" in text) == (2, True)
    with monkeypatch.context() as other:
        other.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        code, text = said(place)
        assert (code, "does not answer" in text, "hint: run the command again" in text) == (4, True, True)
    with monkeypatch.context() as other:
        other.delitem(sys.modules, "builder.publish.index.bucket")
        other.setitem(sys.modules, "s3fs.core", None)
        code, text = said(place)
        assert (code, "hint: run `pip install 'buildfarm[s3]'`" in text) == (4, True)
    assert said(place)[0] == 0


def test_a_store_that_replaces_objects_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call) -> None:
    monkeypatch.delenv(OTHER_SERVER, raising=False)
    with s3_server(tmp_path, "--unconditional") as store:
        for name, value in store.env.items():
            monkeypatch.setenv(name, value)
        botocore.session.get_session().create_client("s3").create_bucket(Bucket="wheels")
        code, _, err = publish(call, "s3://wheels", proven(tmp_path))
        assert code == 2
        assert "this object store ignores the header If-None-Match" in " ".join(err.split())
        assert Repository(Bucket("s3://wheels")).projects() == []


def test_a_connection_that_is_cut_is_continued(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new, objects = ready(tmp_path), Bucket(place)

    def cut(name: str, data: bytes) -> None:
        if name.startswith("simple/"):
            monkeypatch.setattr(objects, "_bucket", "gone")
            objects._fs.client_kwargs["endpoint_url"] = "http://127.0.0.1:9"
            objects._fs.connect(refresh=True)
        Bucket.write(objects, name, data)

    monkeypatch.setattr(objects, "write", cut)
    with pytest.raises(Exception, match="does not answer"):
        Repository(objects).add(new)
    assert Repository(Bucket(place)).objects.names("pending") != []
    check = checked(Repository(Bucket(place)))
    assert (check.finished, check.faults) == (("my-ext",), ())
    assert wheels(place) == ["1.0"]
