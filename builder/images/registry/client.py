"""What a registry says about an image, over HTTP: the digest of a tag and the size. Needs no engine."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace

import requests
from docker import auth

from builder.errors import Code, MissingToolError
from builder.images.network import ca_bundle
from builder.images.registry.reference import Reference
from builder.matrix.axes import Platform
from builder.untrusted import parse_json

#: Timeout of one request to a registry, seconds.
TIMEOUT = 20

#: Timeout of a request for a size, which is only information: the engine may reach a registry that this process cannot.
SIZE_TIMEOUT = 5

#: The index of all platforms comes before the manifest of one platform, because a lock is valid for all platforms.
_ACCEPT = ", ".join(
    (
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    )
)


def find_digest(image: str) -> str:
    """The current digest (`sha256:…`) of a tag in its registry.

    Raises:
        MissingToolError: the registry does not answer, refuses the request, or does not have the tag.

    """
    return "sha256:" + hashlib.sha256(_manifest(image, TIMEOUT)).hexdigest()


def find_size(image: str, platform: Platform) -> int:
    """The size of an image's compressed layers in bytes, which is what a pull downloads at most.

    Raises:
        MissingToolError: the registry does not answer, refuses the request, or does not have the image.

    """
    try:
        manifest = parse_json(_manifest(image, SIZE_TIMEOUT), dict)
        if "manifests" in manifest:  # an index of platforms
            machine = "amd64" if platform is Platform.LINUX_X86_64 else "arm64"
            (digest, *_) = [m["digest"] for m in manifest["manifests"] if m["platform"]["architecture"] == machine]
            name = replace(Reference.parse(image), digest=digest).name
            manifest = parse_json(_manifest(name, SIZE_TIMEOUT), dict)
        return sum(int(layer["size"]) for layer in manifest["layers"])
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        raise _unknown(image, "the registry sent a manifest without the sizes of the layers") from None


def _manifest(image: str, timeout: float) -> bytes:
    """The manifest of an image, or the index of its platforms, as the registry sent it."""
    reference = Reference.parse(image)
    with requests.Session() as session:
        session.verify = str(ca_bundle())
        session.headers["Accept"] = _ACCEPT
        try:
            answer = session.get(reference.url, timeout=timeout)
            if answer.status_code == requests.codes.unauthorized:
                _log_in(session, reference, answer)
                answer = session.get(reference.url, timeout=timeout)
        except (requests.RequestException, ValueError) as error:
            sentence = f"the registry {reference.registry} does not answer: {_reason(error)}"
            raise _unknown(image, sentence, Code.NETWORK_UNREACHABLE) from None
    if answer.status_code == requests.codes.not_found:
        raise _unknown(image, f"the registry {reference.registry} has no such image")
    if answer.status_code != requests.codes.ok:
        raise _unknown(image, f"the registry {reference.registry} refuses the request with HTTP {answer.status_code}")
    computed = "sha256:" + hashlib.sha256(answer.content).hexdigest()
    if answer.headers.get("Docker-Content-Digest", computed) != computed:
        raise _unknown(image, f"the digest that the registry {reference.registry} sent does not match the manifest")
    return bytes(answer.content)


def _log_in(session: requests.Session, reference: Reference, refusal: requests.Response) -> None:
    """Use a token from the realm that the registry names, or the password of `docker login`."""
    login = auth.load_config().resolve_authconfig(reference.registry)
    password = (login["username"], login["password"]) if login and login.get("username") else None
    challenge = refusal.headers.get("WWW-Authenticate", "")
    fields = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
    if not challenge.lower().startswith("bearer ") or "realm" not in fields:
        session.auth = password
        return
    query = {"scope": f"repository:{reference.repository}:pull", "service": fields.get("service")}
    answer = session.get(fields["realm"], params=query, auth=password, timeout=TIMEOUT)
    token = answer.json() if answer.ok else {}
    session.headers["Authorization"] = f"Bearer {token.get('token') or token.get('access_token') or ''}"


def _reason(error: Exception) -> str:
    """The innermost message of nested connection errors."""
    message = re.sub(r"[\"')]+$", "", str(error)).rpartition(": ")[2]
    return message + ")" * (message.count("(") - message.count(")")) or type(error).__name__


def _unknown(image: str, sentence: str, code: Code = Code.IMAGE_NOT_FOUND) -> MissingToolError:
    hints = ["a private registry needs `docker login`; a proxy needs HTTPS_PROXY and SSL_CERT_FILE"]
    if code is Code.NETWORK_UNREACHABLE:
        hints.append("`registries:` in matrix.yaml names a mirror of a registry")
    return MissingToolError(sentence, code, where=image, hints=hints)
