"""The digest a tag has in its registry now, over HTTP. Nothing is pulled and no engine is asked."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

import requests
from docker import auth

from builder.errors import MissingToolError
from builder.images.network import ca_bundle

#: A registry that answers slower than this is not there, seconds.
PATIENCE = 20

_DOCKER_HUB = "registry-1.docker.io"

#: An image's list of platforms before the image of one platform: a lock is for all of them.
_ACCEPT = ", ".join(
    (
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    )
)


@dataclass(frozen=True)
class Reference:
    """An image's name taken apart as Docker does: `ubuntu` is `registry-1.docker.io`, `library/ubuntu`, `latest`."""

    registry: str
    repository: str
    tag: str

    @classmethod
    def parse(cls, image: str) -> Reference:
        """Read an image's name, without digest; the tag is `latest` where none is named."""
        first, _, rest = image.partition("/")
        named = bool(rest) and ("." in first or ":" in first or first == "localhost")
        registry, path = (first, rest) if named else (_DOCKER_HUB, image)
        if registry == "docker.io":
            registry = _DOCKER_HUB
        repository, _, tag = path.partition(":")
        if registry == _DOCKER_HUB and "/" not in repository:
            repository = f"library/{repository}"
        return cls(registry, repository, tag or "latest")

    @property
    def url(self) -> str:
        """Where its manifest is. As with Docker, a registry on this machine is spoken to without TLS."""
        host = self.registry.partition(":")[0]
        scheme = "http" if host in ("localhost", "127.0.0.1") else "https"
        return f"{scheme}://{self.registry}/v2/{self.repository}/manifests/{self.tag}"


def find_digest(image: str) -> str:
    """The digest (`sha256:…`) a tag has in its registry now.

    Raises:
        MissingToolError: the registry does not answer, refuses, or has no such tag.

    """
    reference = Reference.parse(image)
    with requests.Session() as session:
        session.verify = str(ca_bundle())
        session.headers["Accept"] = _ACCEPT
        try:
            answer = session.get(reference.url, timeout=PATIENCE)
            if answer.status_code == requests.codes.unauthorized:
                session.headers["Authorization"] = _authorization(session, reference, answer)
                answer = session.get(reference.url, timeout=PATIENCE)
        except (requests.RequestException, ValueError) as fault:
            raise _unknown(image, f"the registry {reference.registry} does not answer ({_reason(fault)})") from None
    if answer.status_code == requests.codes.not_found:
        raise _unknown(image, f"the registry {reference.registry} has no such image")
    if answer.status_code != requests.codes.ok:
        raise _unknown(image, f"the registry {reference.registry} refuses with HTTP {answer.status_code}")
    counted = "sha256:" + hashlib.sha256(answer.content).hexdigest()
    said = answer.headers.get("Docker-Content-Digest", counted)
    if said != counted:
        raise _unknown(image, f"the registry {reference.registry} names a digest that is not the manifest's")
    return counted


def _authorization(session: requests.Session, reference: Reference, refusal: requests.Response) -> str:
    """What the registry wants to see: a token from where it says, or the password `docker login` keeps."""
    known = auth.load_config().resolve_authconfig(
        auth.INDEX_NAME if reference.registry == _DOCKER_HUB else reference.registry
    )
    password = (known["username"], known["password"]) if known and known.get("username") else None
    challenge = refusal.headers.get("WWW-Authenticate", "")
    asked = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
    if not challenge.lower().startswith("bearer ") or "realm" not in asked:
        return _basic(password) if password else ""
    wanted = {"scope": f"repository:{reference.repository}:pull"}
    if "service" in asked:
        wanted["service"] = asked["service"]
    answer = session.get(asked["realm"], params=wanted, auth=password, timeout=PATIENCE)
    granted = answer.json() if answer.ok else {}
    return f"Bearer {granted.get('token') or granted.get('access_token') or ''}"


def _basic(password: tuple[str, str]) -> str:
    request = requests.Request("GET", "http://localhost", auth=password).prepare()
    return str(request.headers["Authorization"])


def _reason(fault: Exception) -> str:
    """The last words of what three wrappers of a connection say."""
    said = re.sub(r"[\"')]+$", "", str(fault))
    return said.rpartition(": ")[2] or type(fault).__name__


def _unknown(image: str, sentence: str) -> MissingToolError:
    hints = ["`docker login` for a private registry; HTTPS_PROXY and SSL_CERT_FILE for a proxy"]
    return MissingToolError(sentence, where=image, hints=hints)
