"""A download that fails: the hint names the variable that is set, and not one that is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.errors import Code
from builder.wheels.sources.prepare import locate_sdist
from builder.wheels.toolchain.uv import network_hints, uv_error
from tests.refused import refused

PROXIES = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "HTTP_PROXY", "http_proxy")


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (*PROXIES, "UV_OFFLINE", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))


def test_nothing_is_set() -> None:
    assert network_hints() == []


@pytest.mark.parametrize("name", PROXIES)
@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("http://127.0.0.1:9", "http://127.0.0.1:9"),
        ("http://me:pass/w@rd@proxy.example:3128", "http://***@proxy.example:3128"),
        ("me:secret@proxy.example:3128", "***@proxy.example:3128"),
    ],
)
def test_the_proxy_is_named_without_credentials(
    name: str, value: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    (hint,) = network_hints()
    assert hint.startswith(f"{name}={shown} names a proxy")


def test_a_source_behind_a_proxy_that_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://index.example/simple")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    with refused(Code.NETWORK_UNREACHABLE, "tiny 1.0") as caught:
        locate_sdist("tiny", "1.0")
    hints = " ".join(caught.value.hints)
    assert "HTTPS_PROXY=http://127.0.0.1:9 names a proxy" in hints
    assert "set HTTPS_PROXY" not in hints


@pytest.mark.parametrize(("value", "offline"), [("1", True), ("true", True), ("0", False), ("", False)])
def test_uv_may_be_offline(value: str, monkeypatch: pytest.MonkeyPatch, *, offline: bool) -> None:
    monkeypatch.setenv("UV_OFFLINE", value)
    assert network_hints() == ([f"UV_OFFLINE={value} forbids uv to use the network: unset it"] if offline else [])


def test_a_source_without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_OFFLINE", "1")
    with refused(Code.NETWORK_UNREACHABLE, "tiny 1.0") as caught:
        locate_sdist("tiny", "1.0")
    assert any(hint.startswith("UV_OFFLINE=1 forbids") for hint in caught.value.hints)


def test_packages_that_the_cache_lacks_do_not_conflict(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Before: "the packages conflict", because uv says that the requirements are unsatisfiable."""
    log = tmp_path / "log"
    log.write_text(
        "No solution found when resolving dependencies:\n"
        "  ╰─▶ Because torch was not found in the cache and you require torch==2.11.0, we can conclude that your\n"
        "      requirements are unsatisfiable.\n"
    )
    assert uv_error(log, 0, ["torch==2.11.0"], []).code is Code.PACKAGES_CONFLICT
    monkeypatch.setenv("UV_OFFLINE", "1")
    error = uv_error(log, 0, ["torch==2.11.0"], [])
    assert error.code is Code.NETWORK_UNREACHABLE
    assert error.hints[0].startswith("UV_OFFLINE=1 forbids")
    assert not any("UV_DEFAULT_INDEX" in hint for hint in error.hints)
