"""Secrets reach neither a terminal nor a log nor a stored file."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.errors import Code, UsageError
from builder.log import print_line
from builder.masking import mask_credentials, mask_log

SECRETS = {
    "password": ("git clone https://me:hunter2secret@host/x.git", "git clone https://***@host/x.git"),
    "user": ("https://hunter2secret@host/simple", "https://***@host/simple"),
    "password of git": ("ssh://git:hunter2secret@host/x", "ssh://***@host/x"),
    "user and host": ("ssh://git@hunter2secret@host/x", "ssh://***@host/x"),
    "query": ("https://host/x?a=1&private_token=hunter2secret&b=2", "https://host/x?a=1&private_token=***&b=2"),
    "signature": ("https://b/x.whl?X-Amz-Signature=hunter2secret", "https://b/x.whl?X-Amz-Signature=***"),
    "path": ("https://conda.host/t/hunter2secret/main/x", "https://conda.host/t/***/main/x"),
    "token path": ("see 'https://host/token/hunter2secret'.", "see 'https://host/token/***'."),
    "header": ("> Authorization: Basic hunter2secret==", "> Authorization: Basic ***"),
    "header in JSON": ('{"authorization": "Bearer hunter2secret"}', '{"authorization": "Bearer ***"}'),
    "GitHub": ("ghp_hunter2secrethunter2secret", "ghp_***"),
    "PyPI": ("pypi-hunter2secrethunter2secret", "pypi-***"),
}
HARMLESS = [
    "https://host/simple/t/x",
    "x @ https://github.com/me/x@main",
    "https://host/tokens?page=1",
    "// a comment",
    "ssh://git@host:22/x",
    "authorization of the user",
    "pypi-attestations==0.0.28",
]


@pytest.mark.parametrize("name", SECRETS)
def test_secrets_are_masked(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, shown = SECRETS[name]
    assert mask_credentials(text) == shown
    assert mask_credentials(shown) == shown
    error = UsageError(text, Code.VALUE_INVALID, where=text, hints=[text])
    assert (str(error), error.hints) == (f"{shown}: {shown}", (shown,))
    print_line(text)
    assert capsys.readouterr().err == f"{shown}\n"
    log = tmp_path / "log"
    log.write_bytes(f"{text}\nbefore\n".encode())
    start = log.stat().st_size
    with log.open("ab") as stream:
        stream.write(b"\xff " + text.encode() + b"\nafter\n")
        stream.flush()
        mask_log(log, start)
        stream.write(b"later\n")
    data = log.read_bytes()
    assert data[:start] == f"{text}\nbefore\n".encode()
    assert b"hunter2" not in data[start:]
    assert len(data) == start + len(text) + 2 + len(b"\nafter\nlater\n")
    assert data.endswith(b"\nafter\nlater\n")


@pytest.mark.parametrize("text", HARMLESS)
def test_other_texts_stay(text: str) -> None:
    assert mask_credentials(text) == text
