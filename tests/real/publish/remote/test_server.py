"""`publish` to an index server: the token, proofs that it vouches for, refused uploads, and servers in trouble."""

import json
import shutil
import subprocess
import tempfile
import tracemalloc
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from builder.errors import Code, UsageError
from builder.formats import sha256_of
from builder.proof import PROOFS_SUFFIX, Check, Proof, Verdict, proofs_json, proofs_of, proofs_path
from builder.publish.index.levels import Level
from builder.publish.index.new_wheel import new_wheel, read_entry
from builder.publish.index.objects import Folder
from builder.publish.index.pages import Entry, FarmFacts
from builder.publish.index.reader import token_for
from builder.publish.index.repository import NewWheel, Repository
from builder.publish.provenance import statement_path
from builder.publish.server import client as server
from builder.publish.server.client import MAX_EVIDENCE, PUBLISHED, UNCHANGED, UPDATED, UploadBody, root_url
from tests.conftest import coded, lacking
from tests.unit.conftest import Call
from tests.unit.loopback import PYTHON, Quiet, pure_wheel, serving
from tests.unit.publish.index.make import ON_CPU, checked
from tests.unit.publish.index.make import proofs_of as made_proofs
from tests.unit.publish.server.client import Client, form_of

CELL = f"torch2.11.0-cu130-{PYTHON.tag}"
TAG = f"{PYTHON.tag}-{PYTHON.tag}-manylinux_2_17_x86_64"
ON_GPU = (*ON_CPU, Check.GPU_VALUES)


@cache
def library() -> bytes:
    """A library that needs nothing of torch."""
    if shutil.which("gcc") is None:
        lacking("no gcc on this machine")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "_C.so"
        argv = ["gcc", "-shared", "-fPIC", "-nostdlib", "-x", "c", "-", "-o", str(out)]
        subprocess.run(argv, input=b"int call(void) { return 1; }\n", check=True)
        return out.read_bytes()


def proven_wheel(
    folder: Path,
    name: str = "my_ext",
    version: str = "1.0",
    *,
    checks: Sequence[Check] = ON_CPU,
    files: dict[str, str | bytes] | None = None,
) -> Path:
    """A wheel with one library, and beside it the proofs of these checks in one cell."""
    more = files or {}
    members = {f"{name}/__init__.py": "", f"{name}/_C.so": library(), **more}
    wheel = pure_wheel(folder, name, f"{version}+cu130.torch2.11", members, requires=["torch==2.11.*"], tag=TAG)
    proofs_path(wheel).write_bytes(proofs_json(made_proofs(wheel, checks, cells=[CELL])))
    return wheel


@dataclass
class Script:
    """A server that answers what the test says: a status and a text for each method and path."""

    answers: dict[str, list[tuple[int, str]]]
    seen: list[str] = field(default_factory=list)
    url: str = ""

    def next(self, request: str) -> tuple[int, str]:
        self.seen.append(request)
        found = next(answers for start, answers in self.answers.items() if request.startswith(start))
        return found.pop(0) if len(found) > 1 else found[0]


class Handler(Quiet, BaseHTTPRequestHandler):
    script: Script

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        status, text = self.script.next(f"{self.command} {self.path}")
        self.send_response(status)
        if status in {301, 307}:
            self.send_header("Location", text)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    do_POST = do_GET  # noqa: N815 - the name is http.server's


Publish = Callable[..., tuple[int, str, Script]]


@pytest.fixture
def publish(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Publish:
    """Publish a wheel to a server with these answers; returns the exit code, all that was printed, and the server."""
    monkeypatch.setenv("BUILDFARM_TOKEN", "buildfarm_secret")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(server, "_RETRIES", server._RETRIES.new(total=2, backoff_factor=0))
    wheel = proven_wheel(tmp_path / "dist")

    def invoke(page: tuple[int, str] = (404, ""), post: list[tuple[int, str]] | None = None) -> tuple[int, str, Script]:
        script = Script({"GET /simple/": [page], "POST /legacy/": post or [(200, "published")]})
        with serving(type("Own", (Handler,), {"script": script})) as address:
            code, out, err = call("publish", wheel, "--to", f"http://{address}/", "--store", tmp_path / "store")
        assert "buildfarm_secret" not in out + err
        return code, " ".join((out + err).split()), script

    return invoke


def test_a_busy_server_gets_a_few_attempts(publish: Publish) -> None:
    code, _, script = publish(post=[(503, "busy"), (502, ""), (200, "published\n")])
    assert (code, sum(one.startswith("POST") for one in script.seen)) == (0, 3)
    code, said, script = publish(post=[(503, "busy")])
    assert (code, sum(one.startswith("POST") for one in script.seen)) == (4, 3)
    assert "the server does not answer: the server answers with status 503" in said
    assert "run the command again; it continues" in said


@pytest.mark.parametrize("status", [400, 403, 409, 413, 507])
def test_a_refusal_is_not_repeated(publish: Publish, status: int) -> None:
    code, said, script = publish(post=[(status, "no, and \x1b[2J so on")])
    assert (code, sum(one.startswith("POST") for one in script.seen)) == (1, 1)
    assert "no, and" in said
    assert "\x1b" not in said


@pytest.mark.parametrize(
    ("answer", "code", "sentence"),
    [
        ((401, ""), 2, "the server does not know the token, or it has expired"),
        ((404, ""), 2, "there is no index server of buildfarm (status 404)"),
        ((405, ""), 2, "there is no index server of buildfarm (status 405)"),
        ((301, "https://me:password@elsewhere.example/"), 2, "the server redirects to https://***@elsewhere.example/"),
    ],
)
def test_a_server_that_takes_no_upload(publish: Publish, answer: tuple[int, str], code: int, sentence: str) -> None:
    found, said, script = publish(post=[answer])
    assert (found, sentence in said) == (code, True), said
    assert sum(one.startswith("POST") for one in script.seen) == 1


@pytest.mark.parametrize("page", ["<html>", "{}", '{"files": [{}]}', "[" * 10**6])
def test_a_page_that_is_none(publish: Publish, page: str) -> None:
    code, said, script = publish(page=(200, page))
    assert (code, "there is no index server of buildfarm" in said) == (2, True), said
    assert not any(one.startswith("POST") for one in script.seen)


def test_nobody_listens(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUILDFARM_TOKEN", "x")
    monkeypatch.setattr(server, "_RETRIES", server._RETRIES.new(total=1, backoff_factor=0))
    wheel = proven_wheel(tmp_path / "dist")
    code, _, err = call("publish", wheel, "--to", "http://127.0.0.1:9/", "--store", tmp_path / "store")
    assert (code, "the server does not answer" in " ".join(err.split())) == (4, True)


def test_a_large_wheel_is_never_in_memory(tmp_path: Path) -> None:
    wheel = pure_wheel(tmp_path, "big", "1.0")
    entry, _ = read_entry(wheel)
    with wheel.open("wb") as stream:
        stream.truncate(300 * 2**20)
    tracemalloc.start()
    try:
        body = UploadBody(NewWheel(wheel, entry, {PROOFS_SUFFIX: "é".encode()}))
        size = sum(len(chunk) for chunk in body)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert size == len(body)
    assert peak < 5 * 2**20


@pytest.mark.parametrize(
    ("url", "root"),
    [
        ("https://wheels.example", "https://wheels.example/"),
        ("https://wheels.example:8443/team//", "https://wheels.example:8443/team/"),
        ("http://127.0.0.1:8080/", "http://127.0.0.1:8080/"),
        ("http://127.9.9.9", "http://127.9.9.9/"),
        ("http://[::1]:8080", "http://[::1]:8080/"),
        ("http://localhost:8080", "http://localhost:8080/"),
    ],
)
def test_the_root(url: str, root: str) -> None:
    assert root_url(url) == root


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("http://wheels.example/", "everybody on the network can read the token"),
        ("http://10.0.0.1:8080/", "everybody on the network can read the token"),
        ("http://localhost.example/", "everybody on the network can read the token"),
        ("http://127.0.0.1.example/", "everybody on the network can read the token"),
        ("https://", "this is no URL of an index"),
        ("https://wheels.example/?x=1", "this is no URL of an index"),
        ("https://wheels.example:port/", "this is no URL"),
        ("https://[::1/", "this is no URL"),
        ("https://me:verysecret@wheels.example/", "visible to every user"),
        ("http://verysecret@127.0.0.1/", "visible to every user"),
    ],
)
def test_refused_urls(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, sentence: str) -> None:
    monkeypatch.setenv("BUILDFARM_TOKEN", "buildfarm_x")
    code, out, err = call("publish", proven_wheel(tmp_path), "--to", url, "--store", tmp_path / "store")
    assert (code, sentence in " ".join(err.split())) == (2, True), err
    assert "verysecret" not in out + err


def test_where_the_token_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url, netrc = "https://wheels.example:8443/", tmp_path / "netrc"
    monkeypatch.setenv("NETRC", str(netrc))
    with pytest.raises(UsageError, check=coded(Code.LOGIN_REFUSED)) as error:
        token_for(url, {})
    assert "machine wheels.example login __token__ password TOKEN" in error.value.hints[-1]
    netrc.write_text("machine wheels.example login me password other\n")
    with pytest.raises(UsageError, check=coded(Code.LOGIN_REFUSED)):
        token_for(url, {})
    netrc.write_text("machine wheels.example login __token__ password by-netrc\n")
    netrc.chmod(0o600)
    assert token_for(url, {}) == "by-netrc"
    assert token_for(url, {"BUILDFARM_TOKEN": "by-variable\n"}) == "by-variable"
    with pytest.raises(UsageError, check=coded(Code.VALUE_INVALID)):
        token_for(url, {"BUILDFARM_TOKEN": "a\nb"})
    with pytest.raises(UsageError, check=coded(Code.VALUE_INVALID)):
        token_for(url, {"BUILDFARM_TOKEN": "é"})


PROOFS, STATEMENT = "buildfarm_proofs", "buildfarm_statement"


@pytest.fixture
def client(tmp_path: Path) -> Client:
    return Client(tmp_path / "index")


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    return proven_wheel(tmp_path / "dist")


def sent(wheel: Path) -> dict[str, str]:
    """The proofs beside a wheel, as a field."""
    return {PROOFS: proofs_path(wheel).read_text()}


def as_field(proofs: Sequence[Proof]) -> dict[str, str]:
    return {PROOFS: proofs_json(proofs).decode()}


def entry_of(client: Client) -> Entry:
    (entry,) = Repository(Folder(client.root)).entries("my-ext")
    return entry


def farm_of(client: Client) -> FarmFacts:
    farm = entry_of(client).farm
    assert farm
    return farm


def published_proofs(client: Client) -> list[Proof]:
    return proofs_of(json.loads((client.root / farm_of(client).proofs).read_text()))


def with_grafted_library(folder: Path, version: str = "1.0+cu130") -> Path:
    """A wheel with a copy of a library of torch."""
    library = zipfile.ZipFile(proven_wheel(folder / "plain")).read("my_ext/_C.so")
    files = {"my_ext/_C.so": library, "my_ext.libs/libc10.so": library}
    return pure_wheel(folder, "my_ext", version, files, requires=["torch==2.11.*"], tag=TAG)


def statement_of(wheel: Path) -> str:
    return json.dumps({"subject": [{"digest": {"sha256": sha256_of(wheel)}}]})


def test_the_index_has_what_a_publish_into_its_folder_leaves(client: Client, wheel: Path, tmp_path: Path) -> None:
    statement_path(wheel).write_text(statement_of(wheel))
    auth = client.token("prove")
    done = client.upload(wheel, auth, sent(wheel) | {STATEMENT: statement_path(wheel).read_text()})
    assert done.text == f"{PUBLISHED}\n"
    here = Repository(Folder(tmp_path / "folder"))
    here.add(new_wheel(wheel, made_proofs(wheel, cells=[CELL])))
    (other,) = here.entries("my-ext")
    assert replace(entry_of(client), uploaded="") == replace(other, uploaded="")
    farm = farm_of(client)
    assert (farm.cells, farm.built_here) == ({CELL: "cpu"}, True)
    assert (client.root / farm.statement).read_bytes() == statement_path(wheel).read_bytes()
    in_cell = [proof for proof in published_proofs(client) if proof.cell]
    assert {proof.check for proof in in_cell} == set(ON_CPU)
    own = {proof.check for proof in published_proofs(client) if not proof.cell}
    assert own >= {Check.PAYLOAD, Check.TAGS, Check.METADATA, Check.GRAFTED, Check.DEVICE_CODE}
    check = checked(Repository(Folder(client.root)))
    assert (check.wheels, check.faults) == (1, ())


def test_a_token_without_the_scope_is_refused(client: Client, wheel: Path) -> None:
    for number, scopes in enumerate((("upload",), ("upload:my_ext",), ("prove:other",), ("upload", "prove:other"))):
        sentence = "--scope prove" if "upload" in scopes[0] else "does not allow uploads of my-ext"
        client.refuses(403, sentence, wheel, client.token(*scopes, name=f"t{number}"), sent(wheel))
    assert client.upload(wheel, client.token("prove:My_Ext", name="own"), sent(wheel)).text == f"{PUBLISHED}\n"


def test_a_token_without_the_scope_changes_no_proofs(client: Client, wheel: Path) -> None:
    client.upload(wheel, client.token("prove"), sent(wheel))
    before = client.published()
    auth = client.token("upload", name="up")
    client.refuses(403, "", wheel, auth, as_field(made_proofs(wheel, ON_GPU, cells=[CELL])))
    assert client.upload(wheel, auth).text == f"{UNCHANGED}\n"
    assert client.published() == before


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


def one_proof(wheel: Path, evidence: str) -> str:
    (proof, *_) = made_proofs(wheel, cells=[CELL])
    data = replace(proof, check=Check.DEVICE_CODE).to_json()
    return "[" + json.dumps(data).replace('"evidence": {}', f'"evidence": {evidence}') + "]"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "it is no JSON"),
        ("{", "it is no JSON"),
        ("null", "wrong type"),
        ("{}", ""),
        ("[1]", "wrong type"),
        ("[{}]", "it has no 'wheel'"),
        ("\udcff", "it is not UTF-8"),
        (nested(500_000), "nested too deeply"),
        (f'evidence:{{"x": {nested(700)}}}', "nested too deeply"),
        (f'evidence:{{"x": {nested(198)}}}', "nested too deeply"),
        (f'evidence:{{"x": {nested(150)}}}', ""),
        ('evidence:{"libraries": 1}', "wrong type"),
        ('evidence:{"libraries": {"a": {"sass": [1], "ptx": []}}}', "wrong type"),
        ('evidence:{"libraries": {"a": {}}}', "it has no 'sass'"),
    ],
)
def test_proofs_that_cannot_be_read(client: Client, wheel: Path, text: str, sentence: str) -> None:
    if text.startswith("evidence:"):
        text = one_proof(wheel, text.removeprefix("evidence:"))
    field = {PROOFS: text if text != "\udcff" else b"\xff"}
    auth = client.token("prove")
    if sentence:
        assert sentence in client.refuses(400, "the proofs cannot be read", wheel, auth, field)
    else:  # an empty object is taken for an empty list
        assert client.upload(wheel, auth, field).status_code == 200


def test_proofs_of_a_different_file(client: Client, wheel: Path, tmp_path: Path) -> None:
    other = proven_wheel(tmp_path / "other", files={"my_ext/more.py": ""})
    auth = client.token("prove")
    client.refuses(400, f"these are proofs of a different file than {wheel.name}\n", wheel, auth, sent(other))
    both = sent(wheel) | {STATEMENT: statement_of(other)}
    client.refuses(400, "the provenance is of a different file", wheel, auth, both)
    both = sent(wheel) | {STATEMENT: nested(200_000)}
    client.refuses(400, "the provenance cannot be read", wheel, auth, both)


def test_proofs_above_the_limit(client: Client, wheel: Path) -> None:
    large = {PROOFS: " " * (MAX_EVIDENCE + 1)}
    client.refuses(413, f"larger than {MAX_EVIDENCE} bytes", wheel, client.token("prove"), large)
    client.refuses(403, "does not allow proofs", wheel, client.token("upload", name="up"), large)  # not received


def test_two_fields_with_proofs(client: Client, wheel: Path) -> None:
    files = [(PROOFS, (PROOFS, "[]"))] * 2
    refused = client.post("/legacy/", auth=client.token("prove"), data=form_of(wheel), files=files)
    assert (refused.status_code, refused.text) == (400, "the form has two files in one field\n")
    assert client.published() == {}


def test_the_server_reads_the_file_itself(client: Client, tmp_path: Path) -> None:
    """The uploader says that every check of the file passed; the server finds the faults."""
    auth = client.token("prove")

    def refused(status: int, sentence: str, wheel: Path) -> None:
        proofs = made_proofs(wheel, cells=[CELL])
        checks = (Check.PAYLOAD, Check.METADATA, Check.RECORD, Check.GRAFTED, Check.DEVICE_CODE)
        forged = [replace(proofs[0], check=check, when="2999") for check in checks]
        client.refuses(status, sentence, wheel, auth, as_field([*proofs, *forged]))

    requires = ["torch==2.11.*"]
    bare = pure_wheel(tmp_path / "a", "my_ext", "1.0+cu130", requires=requires, tag=TAG)
    refused(403, "payload: failed", bare)
    refused(403, "grafted: failed", with_grafted_library(tmp_path / "c", "1.0"))
    changed = proven_wheel(tmp_path / "d")
    with zipfile.ZipFile(changed, "a") as archive:
        archive.writestr("my_ext/added.py", "")
    refused(403, "record: failed: RECORD does not list my_ext/added.py", changed)
    files = {"my_ext/_C.so": zipfile.ZipFile(changed).read("my_ext/_C.so")}
    excluded = pure_wheel(tmp_path / "e", "my_ext", "1.0", files, requires=["torch==2.9.*"], tag=TAG)
    refused(400, f"there are proofs in {CELL}, but METADATA requires torch==2.9.*", excluded)


def test_gpu_code_is_what_the_server_finds(client: Client, wheel: Path) -> None:
    forged = Proof(
        sha256_of(wheel),
        None,
        Check.DEVICE_CODE,
        Verdict.PASSED,
        evidence={"claimed": ["9.0"], "libraries": {"my_ext/_C.so": {"sass": ["sm_90"], "ptx": []}}},
    )
    client.upload(wheel, client.token("prove"), as_field([*made_proofs(wheel, cells=[CELL]), forged]))
    assert farm_of(client).archs == ()
    (kept,) = (proof for proof in published_proofs(client) if proof.check is Check.DEVICE_CODE)
    assert kept.evidence == {"claimed": ["9.0"], "libraries": {}}


@pytest.mark.parametrize("check", [Check.METADATA, Check.STABLE])
def test_a_check_that_failed_for_the_uploader_has_failed(client: Client, wheel: Path, check: Check) -> None:
    """The uploader has the recipe, so its checks are stricter."""
    failed = replace(made_proofs(wheel)[0], check=check, verdict=Verdict.FAILED, reason="the recipe differs")
    fields = as_field([*made_proofs(wheel, cells=[CELL]), failed])
    client.refuses(403, f"{check}: failed: the recipe differs", wheel, client.token("prove"), fields)


def test_a_finding_that_the_recipe_accepts(client: Client, tmp_path: Path) -> None:
    wheel = with_grafted_library(tmp_path)
    proofs = made_proofs(wheel, cells=[CELL])
    accepted = replace(
        proofs[0], check=Check.GRAFTED, verdict=Verdict.ACCEPTED, reason="libc10", evidence={"accepted": "y"}
    )
    assert client.upload(wheel, client.token("prove"), as_field([*proofs, accepted])).text == f"{PUBLISHED}\n"
    assert farm_of(client).cells == {CELL: "cpu"}


def test_the_bar_of_the_server_is_checked_again(tmp_path: Path, wheel: Path) -> None:
    client = Client(tmp_path / "index", required=[Level.GPU])
    auth = client.token("prove")
    client.refuses(403, "gpu-values: not run", wheel, auth, sent(wheel))
    assert client.upload(wheel, auth, as_field(made_proofs(wheel, ON_GPU, cells=[CELL]))).text == f"{PUBLISHED}\n"
    assert client.upload(wheel, auth, sent(wheel)).text == f"{UNCHANGED}\n"


def test_later_proofs_are_added_and_earlier_ones_stay(client: Client, wheel: Path) -> None:
    auth = client.token("prove")
    client.upload(wheel, auth, sent(wheel))
    uploaded = entry_of(client).uploaded
    assert client.upload(wheel, auth, sent(wheel)).text == f"{UNCHANGED}\n"
    gpu = [proof for proof in made_proofs(wheel, ON_GPU, cells=[CELL]) if proof.check in {Check.TAGS, Check.GPU_VALUES}]
    assert client.upload(wheel, auth, as_field(gpu)).text == f"{UPDATED}\n"
    assert (farm_of(client).cells, entry_of(client).uploaded) == ({CELL: "gpu"}, uploaded)
    assert client.upload(wheel, auth, sent(wheel)).text == f"{UNCHANGED}\n"
    failed = replace(gpu[1], verdict=Verdict.FAILED, when="2030")
    assert client.upload(wheel, auth, as_field([gpu[0], failed])).text == f"{UNCHANGED}\n"  # it stays published


def test_proofs_for_a_wheel_that_was_uploaded_without(client: Client, wheel: Path) -> None:
    client.upload(wheel, client.token("upload"))
    assert client.upload(wheel, client.token("prove", name="p"), sent(wheel)).text == f"{UPDATED}\n"
    assert farm_of(client).cells == {CELL: "cpu"}


def test_an_update_keeps_origin_and_provenance(client: Client, wheel: Path) -> None:
    repository = Repository(Folder(client.root))
    repository.add(new_wheel(wheel, [], origin="https://wheels.example/x.whl"))
    auth = client.token("prove")
    assert client.upload(wheel, auth, sent(wheel)).text == f"{UPDATED}\n"
    farm = farm_of(client)
    assert (farm.origin, farm.built_here) == ("https://wheels.example/x.whl", False)
    assert client.upload(wheel, auth, {STATEMENT: statement_of(wheel)}).text == f"{UPDATED}\n"
    assert client.upload(wheel, auth, as_field(made_proofs(wheel, ON_GPU, cells=[CELL]))).text == f"{UPDATED}\n"
    farm = farm_of(client)
    assert (farm.origin, farm.built_here, farm.cells) == ("", True, {CELL: "gpu"})
    assert (client.root / farm.statement).read_text() == statement_of(wheel)


def test_other_bytes_are_refused_whatever_the_proofs_say(client: Client, wheel: Path, tmp_path: Path) -> None:
    auth = client.token("prove")
    client.upload(wheel, auth, sent(wheel))
    other = proven_wheel(tmp_path / "other", files={"my_ext/more.py": ""})
    client.refuses(409, "a published file never changes", other, auth, sent(other))
    assert client.get("/" + entry_of(client).path).content == wheel.read_bytes()


def test_damaged_proofs_in_the_index_are_replaced(client: Client, wheel: Path) -> None:
    auth = client.token("prove")
    client.upload(wheel, auth, sent(wheel))
    (client.root / farm_of(client).proofs).write_text("{")
    assert client.upload(wheel, auth, sent(wheel)).text == f"{UPDATED}\n"
    assert {proof.check for proof in published_proofs(client)} >= set(ON_CPU)
