"""A client of the server's app, without a network."""

import hashlib
from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from builder.publish.index.objects import Folder
from builder.publish.index.repository import Repository
from builder.publish.server.app import make_app
from builder.publish.server.client import EVIDENCE
from builder.publish.server.tokens import Tokens
from tests.unit.publish.index.make import ready


class Client(TestClient):
    """A client of the index in a folder."""

    def __init__(self, root: Path, **settings: Any) -> None:
        self.root = root
        super().__init__(make_app(root, **settings), follow_redirects=False)

    def token(self, *scopes: str, name: str = "ci") -> tuple[str, str]:
        """What a client sends as its user name and its password."""
        return "__token__", Tokens(self.root).add(name, scopes or ("upload",), None)[0]

    def publish(self, folder: Path, name: str = "my_ext", version: str = "1.0+cu130") -> str:
        """Publish a wheel; return its path in the index."""
        new = ready(folder, name, version)
        repository = Repository(Folder(self.root))
        repository.add(new)
        return repository.find(new.wheel.name).path

    def upload(self, wheel: Path, auth: tuple[str, str] | None, fields: Mapping[str, Any] | None = None) -> Any:
        """Upload a wheel as twine does. `fields` replace what the form says; proofs and provenance become files."""
        more = dict(fields or {})
        evidence = {name: (name, more.pop(name)) for name in EVIDENCE if name in more}
        return self.post(
            "/legacy/",
            headers={} if auth is None else {"authorization": "Basic " + b64encode(":".join(auth).encode()).decode()},
            data=form_of(wheel) | more,
            files={**evidence, "content": (wheel.name, wheel.read_bytes())},
        )

    def refuses(
        self,
        status: int,
        sentence: str,
        wheel: Path,
        auth: tuple[str, str] | None,
        fields: Mapping[str, Any] | None = None,
    ) -> str:
        """Upload a wheel that is refused with this status and sentence, and check that nothing is published of it."""
        before = self.published()
        answer = self.upload(wheel, auth, fields)
        assert (answer.status_code, sentence in answer.text) == (status, True), answer.text
        assert self.published() == before
        return str(answer.text)

    def published(self) -> dict[Path, bytes]:
        """Every file of the index: records, wheels and pages, also temporary ones; without the tokens."""
        files = [path for path in self.root.rglob("*") if path.is_file() and ".tokens" not in path.parts]
        return {path: path.read_bytes() for path in files}


def form_of(wheel: Path) -> dict[str, str]:
    """The fields of the form of an upload."""
    name, version = wheel.name.split("-")[:2]
    return {
        ":action": "file_upload",
        "protocol_version": "1",
        "filetype": "bdist_wheel",
        "name": name,
        "version": version,
        "description": "x" * 5000,
        "sha256_digest": hashlib.sha256(wheel.read_bytes()).hexdigest(),
    }
