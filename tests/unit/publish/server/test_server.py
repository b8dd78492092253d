"""What the server answers to readers, and tokens."""

from datetime import timedelta
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from builder.errors import Code
from builder.publish.server.app import make_app
from builder.publish.server.tokens import Tokens, parse_lifetime, parse_scope
from tests.refused import refused
from tests.unit.publish.server.client import Client

JSON, HTML = "application/vnd.pypi.simple.v1+json", "application/vnd.pypi.simple.v1+html"
PIP = f"{JSON}, {HTML}; q=0.1, text/html; q=0.01"
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"


@pytest.fixture
def client(tmp_path: Path) -> Client:
    client = Client(tmp_path / "index")
    client.publish(tmp_path)
    return client


@pytest.mark.parametrize(
    ("accept", "answer"),
    [
        (None, "text/html; charset=utf-8"),
        ("*/*", "text/html; charset=utf-8"),
        (BROWSER, "text/html; charset=utf-8"),
        ("nonsense", "text/html; charset=utf-8"),
        (HTML, "text/html; charset=utf-8"),
        (JSON, JSON),
        ("application/vnd.pypi.simple.latest+json", JSON),
        (PIP, JSON),
    ],
)
def test_the_form_of_a_page(client: Client, accept: str | None, answer: str) -> None:
    of_torch = ("/cu130/torch2.11/", "/cu130/torch2.11/my-ext/")
    for path in ("/simple/", "/cu130/", "/simple/my-ext/", "/cu130/my-ext/", *of_torch):
        response = client.get(path, headers={"accept": accept} if accept else {"accept": ""})
        assert (response.status_code, response.headers["content-type"]) == (200, answer)
        assert response.headers["vary"] == "Accept"
        assert ("versions" in response.text or "projects" in response.text) == (answer == JSON)


def test_pages_for_people(client: Client) -> None:
    for path, text in (("/", "projects/my-ext/"), ("/projects/my-ext/", "Wheels of 1.0")):
        response = client.get(path, headers={"accept": "text/html"})
        assert (response.status_code, response.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert text in response.text
    assert client.get("/projects/other/").status_code == 404


def test_a_browser_runs_nothing_that_was_uploaded(client: Client) -> None:
    page = client.get("/simple/my-ext/", headers={"accept": JSON}).json()
    wheel = page["files"][0]["url"].removeprefix("../..")
    kinds = {
        "/simple/": "text/html; charset=utf-8",
        "/": "text/html; charset=utf-8",
        wheel: "application/octet-stream",
        f"{wheel}.metadata": "text/plain; charset=utf-8",
        f"{wheel}.proofs.json": "application/json",
    }
    for path, kind in kinds.items():
        headers = client.get(path, headers={"accept": "text/html"}).headers
        assert headers["content-type"] == kind
        policy = headers["content-security-policy"].split("; ")
        assert {"default-src 'none'", "frame-ancestors 'none'"} <= set(policy)
        assert ("script-src 'unsafe-inline'" in policy) == (path == "/")


#: What no reader gets, although much of it lies in the folder of the index.
HIDDEN = """
    /records/my-ext/my_ext-1.0+cu130-py3-none-any.whl.json /records/ /pending/ /.tokens/ci.json /.uploads/ /files/
    /files/../records/my-ext/ /files/..%2f.tokens%2fci.json /files/%2e%2e/.tokens/ci.json
    /simple/..%2f..%2f..%2f..%2fetc%2fpasswd /simple/%2e%2e/.tokens/ /simple/my-ext/..%2f..%2f.tokens%2fci.json
    /simple/my-ext/%2e%2e /simple/my-ext/other.html /simple/my-ext/index.html /metrics /cu999/ /cu130/torch2.9/
    /cu130/torch2.11/other/ /cu130/torch2/my-ext/ /simple/other/ /simple/%00/ /simple/%ff%fe/
    /simple/my-ext%5c..%5c //etc/passwd /simple /simple/my-ext /simple/My_Ext/
"""


@pytest.mark.parametrize("path", HIDDEN.split())
def test_nothing_else_is_served(client: Client, path: str) -> None:
    client.token()
    (client.root.parent / "etc").mkdir()
    for method in ("GET", "HEAD"):
        response = client.request(method, f"http://testserver{path}")
        assert response.status_code == 404, response.text
        assert "sha256" not in response.text


def test_a_folder_is_no_file(client: Client) -> None:
    folder = client.root / "files/ab" / ("c" * 62)
    folder.mkdir(parents=True)
    (folder / "x.whl").mkdir()
    assert client.get(f"/files/ab/{'c' * 62}/x.whl").status_code == 404


def test_a_symbolic_link_leads_to_nothing(client: Client, tmp_path: Path) -> None:
    path = client.publish(tmp_path, version="2.0+cu130")
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "index.html").write_text("sha256 of another index")
    wheel = client.root / path
    moved = wheel.rename(secret / wheel.name)
    (client.root / "simple" / "linked").symlink_to(secret)
    (client.root / "cu124").symlink_to(secret)
    (client.root / "projects" / "linked").symlink_to(secret)
    (client.root / "index.html").unlink()
    (client.root / "index.html").symlink_to(secret / "index.html")
    for target in (moved, wheel.with_name("missing")):
        wheel.unlink(missing_ok=True)
        wheel.symlink_to(target)
        assert client.get(f"/{path}").status_code == 404
    for url in ("/", "/simple/linked/", "/simple/linked/index.html", "/cu124/", "/projects/linked/"):
        answer = client.get(url)
        assert answer.status_code == 404, url
        assert "another index" not in answer.text
    linked = tmp_path / "link-to-the-index"
    linked.symlink_to(client.root)
    other = TestClient(make_app(linked))
    assert other.get("/simple/my-ext/").status_code == 200, "the folder of the index may be a link"


def test_unchanged_pages_are_not_sent_again(client: Client, tmp_path: Path) -> None:
    first = client.get("/simple/my-ext/", headers={"accept": JSON})
    assert "max-age=10" in first.headers["cache-control"]
    for condition in (
        {"if-none-match": first.headers["etag"]},
        {"if-none-match": f'"other", W/{first.headers["etag"]}'},
        {"if-modified-since": first.headers["last-modified"]},
    ):
        again = client.get("/simple/my-ext/", headers={"accept": JSON} | condition)
        assert (again.status_code, again.content) == (304, b"")
    html = client.get("/simple/my-ext/", headers={"if-none-match": first.headers["etag"]})
    assert html.status_code == 200  # the other form is a different page
    client.publish(tmp_path, version="2.0+cu130")
    changed = client.get("/simple/my-ext/", headers={"accept": JSON, "if-none-match": first.headers["etag"]})
    assert changed.json()["versions"] == ["1.0+cu130", "2.0+cu130"]


def test_files(client: Client, tmp_path: Path) -> None:
    path = "/" + client.publish(tmp_path, version="3.0")
    whole = client.get(path)
    assert "immutable" in whole.headers["cache-control"]
    assert whole.content[:2] == b"PK"
    assert client.get(path, headers={"if-none-match": whole.headers["etag"]}).status_code == 304
    part = client.get(path, headers={"range": "bytes=2-5"})
    assert (part.status_code, part.content) == (206, whole.content[2:6])
    assert part.headers["content-range"] == f"bytes 2-5/{len(whole.content)}"
    assert client.get(path, headers={"range": f"bytes={len(whole.content)}-"}).status_code == 416
    assert client.get(path, headers={"range": "bytes= 2-3, 5-5"}).status_code == 206
    assert client.get(path, headers={"range": "bytes=2-3,"}).content == whole.content[2:4]
    assert client.get(path, headers={"range": "bytes=-4"}).content == whole.content[-4:]
    head = client.head(path)
    assert (head.headers["content-length"], head.content) == (str(len(whole.content)), b"")
    metadata = client.get(f"{path}.metadata")
    assert b"Name: my_ext" in metadata.content
    assert metadata.headers["etag"] != whole.headers["etag"]
    assert client.get(f"{path}.proofs.json").headers["cache-control"] == "public, max-age=10"


def test_an_empty_index(tmp_path: Path) -> None:
    client = Client(tmp_path / "index")
    assert client.get("/simple/").status_code == 200
    assert client.get("/simple/", headers={"accept": JSON}).json()["projects"] == []
    assert client.get("/cu130/").status_code == 404


def test_reading_with_a_token_only(client: Client) -> None:
    closed = Client(client.root, token_required=True)
    for path in ("/", "/simple/", "/simple/my-ext/", "/simple/My_Ext"):
        refused = closed.get(path)
        assert refused.status_code == 401
        assert refused.headers["www-authenticate"].startswith("Basic")
    assert closed.get("/files/x").status_code == 401
    assert closed.get("/health").status_code == 200
    user, secret = closed.token("read")
    assert closed.get("/simple/", auth=(user, secret)).status_code == 200
    assert closed.get("/simple/", headers={"authorization": f"Bearer {secret}"}).status_code == 200
    assert "private" in closed.get("/simple/", auth=(user, secret)).headers["cache-control"]
    for wrong in (("__token__", "x"), ("ci", secret), ("__token__", "")):
        assert closed.get("/simple/", auth=wrong).status_code == 401
    for header in ("Basic", "Basic !!!", "Bearer", "Digest x", f"Basic {secret}"):
        assert closed.get("/simple/", headers={"authorization": header}).status_code == 401


def test_only_a_hash_is_kept(tmp_path: Path) -> None:
    secret, token = Tokens(tmp_path).add("ci", ("upload",), timedelta(days=1))
    assert len(secret) > 50
    (file,) = (tmp_path / ".tokens").iterdir()
    assert secret not in file.read_text()
    assert Tokens(tmp_path).find(secret) == token
    assert Tokens(tmp_path).find(secret + "x") is None


def test_scopes_and_lifetimes() -> None:
    """Those that are refused are in the transcript of `serve`."""
    assert parse_scope("upload:My_Ext") == "upload:my-ext"
    assert (parse_lifetime("12h"), parse_lifetime("never")) == (timedelta(hours=12), None)


def test_expired_and_revoked_tokens_are_unknown(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path)
    expired, _ = tokens.add("old", ("upload",), timedelta(seconds=-1))
    secret, _ = tokens.add("ci", ("upload",), parse_lifetime("90d"))
    assert tokens.find(expired) is None
    assert tokens.find(secret)
    Tokens(tmp_path).revoke("ci")  # a different process
    assert tokens.find(secret) is None
    with refused(Code.NOT_IN_INDEX):
        tokens.revoke("ci")
