"""The digest of a tag, from a registry on this machine."""

from __future__ import annotations

import base64
import json
import socket
from pathlib import Path

import pytest

from builder.errors import Code, Exit, MissingToolError
from builder.images.registry.client import find_digest
from tests.conftest import coded
from tests.unit.images.registry.stand_in_registry import Registry


def log_in(registry: Registry, folder: Path) -> None:
    """Write the file that `docker login` writes."""
    folder.mkdir()
    entry = {"auth": base64.b64encode(registry.password.encode()).decode()}
    (folder / "config.json").write_text(json.dumps({"auths": {registry.address: entry}}))


def test_the_digest_is_that_of_the_index_of_all_platforms(registry: Registry) -> None:
    image = registry.add("nvidia/cuda:12.1.1-devel")
    assert find_digest(image) == registry.digest_of(image)
    assert registry.accepted[0].startswith("application/vnd.oci.image.index.v1+json")
    assert registry.requests == ["/v2/nvidia/cuda/manifests/12.1.1-devel"]
    registry.silent = True  # without the header, the digest is computed
    assert find_digest(image) == registry.digest_of(image)
    registry.silent, registry.digest = False, "sha256:" + "00" * 32
    with pytest.raises(MissingToolError, check=coded(Code.IMAGE_NOT_FOUND)):
        find_digest(image)


def test_a_token_is_fetched_from_the_realm_of_the_registry(registry: Registry) -> None:
    image = registry.add("pypa/manylinux:1")
    registry.tokens = True
    assert find_digest(image) == registry.digest_of(image)
    assert registry.requests[1] == "/token?scope=repository%3Apypa%2Fmanylinux%3Apull&service=here"


@pytest.mark.parametrize("tokens", [True, False])
def test_a_private_registry_gets_the_password_of_docker_login(registry: Registry, tmp_path: Path, tokens: bool) -> None:
    image = registry.add("farm/base:1")
    registry.password, registry.tokens = "someone:secret", tokens
    with pytest.raises(MissingToolError, check=coded(Code.IMAGE_NOT_FOUND)) as refused:
        find_digest(image)
    assert any("docker login" in hint for hint in refused.value.hints)
    log_in(registry, tmp_path / "docker")
    assert find_digest(image) == registry.digest_of(image)


def test_a_missing_image_is_a_missing_tool_error(registry: Registry) -> None:
    with pytest.raises(MissingToolError, check=coded(Code.IMAGE_NOT_FOUND)) as missing:
        find_digest(f"{registry.address}/nvidia/cuda:99")
    assert missing.value.where == f"{registry.address}/nvidia/cuda:99"
    assert missing.value.exit_code is Exit.TOOL_MISSING


@pytest.mark.usefixtures("registry")
def test_a_registry_that_does_not_answer_is_a_missing_tool_error() -> None:
    with socket.socket() as closed:  # bound but not listening, so connections are refused
        closed.bind(("127.0.0.1", 0))
        with pytest.raises(MissingToolError, check=coded(Code.NETWORK_UNREACHABLE)) as gone:
            find_digest(f"127.0.0.1:{closed.getsockname()[1]}/a:1")
    assert "HTTPConnectionPool" not in str(gone.value)
