"""A registry on this machine: manifests by name and tag, with the HTTP API of container registries."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, urlsplit

from tests.unit.loopback import serving


@dataclass
class Registry:
    """Contents, authentication and requests of the registry."""

    address: str = ""
    #: Names with tags, and the bytes of their manifests.
    manifests: dict[str, bytes] = field(default_factory=dict)
    #: Required `user:password`, or empty.
    password: str = ""
    #: Whether a token from /token is required, as on Docker Hub, instead of the password.
    tokens: bool = False
    #: A wrong digest for the header, or empty.
    digest: str = ""
    #: Whether the header is missing.
    silent: bool = False
    #: Paths of all requests.
    requests: list[str] = field(default_factory=list)
    #: `Accept` headers of the requests for manifests.
    accepted: list[str] = field(default_factory=list)

    def add(self, name: str, content: str = "") -> str:
        """Add an image; returns its name with the registry's address."""
        self.manifests[name] = json.dumps({"schemaVersion": 2, "manifests": [], "of": content or name}).encode()
        return f"{self.address}/{name}"

    def digest_of(self, image: str) -> str:
        """The digest of an image, by the name that `add` returned."""
        return "sha256:" + hashlib.sha256(self.manifests[image.removeprefix(f"{self.address}/")]).hexdigest()


def _handler(registry: Registry) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            registry.requests.append(self.path)
            url = urlsplit(self.path)
            basic = "Basic " + base64.b64encode(registry.password.encode()).decode()
            credentials = self.headers.get("Authorization", "")
            if url.path == "/token":
                scope = parse_qs(url.query)["scope"][0]
                allowed = not registry.password or credentials == basic
                return self.answer(200 if allowed else 401, json.dumps({"token": f"for {scope}"}).encode())
            repository, _, tag = url.path.removeprefix("/v2/").rpartition("/manifests/")
            wanted = f"Bearer for repository:{repository}:pull" if registry.tokens else basic
            if (registry.tokens or registry.password) and credentials != wanted:
                realm = f'Bearer realm="http://{registry.address}/token",service="here",scope="x"'
                return self.answer(401, b"{}", {"WWW-Authenticate": realm if registry.tokens else 'Basic realm="here"'})
            registry.accepted.append(self.headers.get("Accept", ""))
            manifest = registry.manifests.get(f"{repository}:{tag}")
            if manifest is None:
                return self.answer(404, b'{"errors": [{"code": "MANIFEST_UNKNOWN"}]}')
            stated = registry.digest or "sha256:" + hashlib.sha256(manifest).hexdigest()
            return self.answer(200, manifest, {} if registry.silent else {"Docker-Content-Digest": stated})

        def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as http.server has it
            """Do not log requests."""

    return Handler


@contextlib.contextmanager
def running_registry() -> Iterator[Registry]:
    """A registry that runs during the body."""
    registry = Registry()
    with serving(_handler(registry)) as registry.address:
        yield registry
