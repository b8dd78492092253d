"""A tag's digest, asked of a registry on this machine."""

from __future__ import annotations

import base64
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from builder.errors import Exit, MissingToolError
from builder.images.registry import Reference, find_digest
from tests.unit.images.stand_in_registry import Registry, running_registry


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    """A registry, and no memory of this machine's passwords and proxies."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    with running_registry() as registry:
        yield registry


def log_in(registry: Registry, folder: Path) -> None:
    """What `docker login` leaves behind."""
    folder.mkdir()
    entry = {"auth": base64.b64encode(registry.password.encode()).decode()}
    (folder / "config.json").write_text(json.dumps({"auths": {registry.address: entry}}))


@pytest.mark.parametrize(
    ("image", "where"),
    [
        ("ubuntu", "https://registry-1.docker.io/v2/library/ubuntu/manifests/latest"),
        ("nvidia/cuda:12.1.1-x", "https://registry-1.docker.io/v2/nvidia/cuda/manifests/12.1.1-x"),
        ("docker.io/nvidia/cuda:1", "https://registry-1.docker.io/v2/nvidia/cuda/manifests/1"),
        ("quay.io/pypa/many:2026", "https://quay.io/v2/pypa/many/manifests/2026"),
        ("registry.example:5000/a/b", "https://registry.example:5000/v2/a/b/manifests/latest"),
        ("localhost/a:1", "http://localhost/v2/a/manifests/1"),
        ("127.0.0.1:5000/a:1", "http://127.0.0.1:5000/v2/a/manifests/1"),
    ],
)
def test_a_name_is_read_as_docker_reads_it(image: str, where: str) -> None:
    assert Reference.parse(image).url == where


def test_the_digest_is_that_of_the_list_of_all_platforms(registry: Registry) -> None:
    image = registry.add("nvidia/cuda:12.1.1-devel")
    assert find_digest(image) == registry.digest_of(image)
    assert registry.accepted[0].startswith("application/vnd.oci.image.index.v1+json")
    assert registry.asked == ["/v2/nvidia/cuda/manifests/12.1.1-devel"]


def test_a_registry_that_names_no_digest_is_counted_after(registry: Registry) -> None:
    image = registry.add("a/b:1")
    registry.silent = True
    assert find_digest(image) == registry.digest_of(image)


def test_a_digest_that_is_not_the_content_s_is_refused(registry: Registry) -> None:
    image = registry.add("a/b:1")
    registry.digest = "sha256:" + "00" * 32
    with pytest.raises(MissingToolError, match="not the manifest's"):
        find_digest(image)


def test_a_token_is_fetched_where_the_registry_says(registry: Registry) -> None:
    image = registry.add("pypa/manylinux:1")
    registry.tokens = True
    assert find_digest(image) == registry.digest_of(image)
    assert registry.asked[1] == "/token?scope=repository%3Apypa%2Fmanylinux%3Apull&service=here"


@pytest.mark.parametrize("tokens", [True, False])
def test_a_private_registry_is_shown_what_docker_login_keeps(registry: Registry, tmp_path: Path, tokens: bool) -> None:
    image = registry.add("farm/base:1")
    registry.password, registry.tokens = "someone:secret", tokens
    with pytest.raises(MissingToolError, match="refuses with HTTP 401") as refused:
        find_digest(image)
    assert any("docker login" in hint for hint in refused.value.hints)
    log_in(registry, tmp_path / "docker")
    assert find_digest(image) == registry.digest_of(image)


def test_an_image_that_is_not_there_is_a_sentence(registry: Registry) -> None:
    with pytest.raises(MissingToolError, match="has no such image") as missing:
        find_digest(f"{registry.address}/nvidia/cuda:99")
    assert missing.value.where == f"{registry.address}/nvidia/cuda:99"
    assert missing.value.exit_code is Exit.TOOL_MISSING


@pytest.mark.usefixtures("registry")
def test_a_registry_that_does_not_answer_is_a_sentence() -> None:
    with socket.socket() as closed:  # bound, not listening: refuses
        closed.bind(("127.0.0.1", 0))
        with pytest.raises(MissingToolError, match=r"does not answer \(.*refused") as gone:
            find_digest(f"127.0.0.1:{closed.getsockname()[1]}/a:1")
    assert "HTTPConnectionPool" not in str(gone.value)
