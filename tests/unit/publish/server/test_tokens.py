"""Tokens: hashed at rest, scopes, expiry, revoked while a server runs."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from builder.commands.index.token import NewTokenOptions, add
from builder.errors import Code
from builder.publish.server.tokens import Tokens, parse_lifetime, parse_scope
from tests.refused import refused


def test_only_a_hash_is_kept(tmp_path: Path) -> None:
    secret, token = Tokens(tmp_path).add("ci", ("upload",), timedelta(days=1))
    assert len(secret) > 50
    (file,) = (tmp_path / ".tokens").iterdir()
    assert secret not in file.read_text()
    assert Tokens(tmp_path).find(secret) == token
    assert Tokens(tmp_path).find(secret + "x") is None


def test_scopes_lifetimes_and_names(tmp_path: Path) -> None:
    assert parse_scope("upload:My_Ext") == "upload:my-ext"
    assert (parse_lifetime("12h"), parse_lifetime("never")) == (timedelta(hours=12), None)
    for scope in ("", "write", "upload:", "read:my-ext", "upload:../x"):
        with refused(Code.VALUE_INVALID):
            parse_scope(scope)
    for lifetime in ("90", "0d", "00h", "000d"):  # the last ones have expired at once
        with refused(Code.VALUE_INVALID, lifetime):
            parse_lifetime(lifetime)
    for name in ("", "../x", ".hidden", "a b", "x" * 65):
        with refused(Code.VALUE_INVALID):
            Tokens(tmp_path).add(name, ("read",), None)
    Tokens(tmp_path).add("ci", ("read",), None)
    with refused(Code.ALREADY_EXISTS):
        Tokens(tmp_path).add("ci", ("upload",), None)


def test_a_token_for_one_project(tmp_path: Path) -> None:
    _, token = Tokens(tmp_path).add("release", ("upload:my_ext", "read"), None)
    assert token.may_upload()
    assert token.may_upload("my-ext")
    assert not token.may_upload("my-ext2")


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


def test_a_mistyped_folder_gets_no_token(tmp_path: Path) -> None:
    with refused(Code.NO_INDEX, str(tmp_path / "indxe")):
        add(NewTokenOptions(index=tmp_path / "indxe", name="ci", scope=["upload"]))
    assert not (tmp_path / "indxe").exists()
