"""Tokens: hashed at rest, scopes, expiry, revoked while a server runs."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from builder.commands.index.token import NewTokenOptions, add
from builder.errors import Code, UsageError
from builder.publish.server.tokens import Tokens, parse_lifetime, parse_scope
from tests.conftest import coded
from tests.refused import refused


def test_only_a_hash_is_kept(tmp_path: Path) -> None:
    secret, token = Tokens(tmp_path).add("ci", ("upload",), timedelta(days=1))
    assert len(secret) > 50
    (file,) = (tmp_path / ".tokens").iterdir()
    assert secret not in file.read_text()
    assert Tokens(tmp_path).find(secret) == token
    assert Tokens(tmp_path).find(secret + "x") is None


def test_scopes() -> None:
    assert parse_scope("upload:My_Ext") == "upload:my-ext"
    for wrong in ("", "write", "upload:", "read:my-ext", "upload:../x"):
        with pytest.raises(UsageError, check=coded(Code.VALUE_INVALID)):
            parse_scope(wrong)


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
    with refused(Code.TOKEN_UNKNOWN):
        tokens.revoke("ci")


@pytest.mark.parametrize("name", ["", "../x", ".hidden", "a b", "x" * 65])
def test_names_of_tokens(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, check=coded(Code.VALUE_INVALID)):
        Tokens(tmp_path).add(name, ("read",), None)


def test_a_name_is_used_once(tmp_path: Path) -> None:
    Tokens(tmp_path).add("ci", ("read",), None)
    with refused(Code.TOKEN_EXISTS):
        Tokens(tmp_path).add("ci", ("upload",), None)


def test_lifetimes() -> None:
    assert parse_lifetime("12h") == timedelta(hours=12)
    assert parse_lifetime("never") is None
    with pytest.raises(UsageError, check=coded(Code.VALUE_INVALID)):
        parse_lifetime("90")


@pytest.mark.parametrize("text", ["0d", "00h", "000d"])
def test_no_token_is_expired_when_it_is_made(text: str) -> None:
    with refused(Code.VALUE_INVALID, text):
        parse_lifetime(text)


def test_a_token_is_for_an_index_or_a_new_folder(tmp_path: Path) -> None:
    mistyped, other, new = tmp_path / "indxe", tmp_path / "home", tmp_path / "new"
    other.mkdir()
    (other / "notes.txt").write_text("")
    for folder in (mistyped, other):
        with refused(Code.NO_INDEX, str(folder)):
            add(NewTokenOptions(index=folder, name="ci", scope=["upload"]))
    assert not mistyped.exists()
    assert [path.name for path in other.iterdir()] == ["notes.txt"]
    new.mkdir()  # as `buildfarm serve` makes it
    add(NewTokenOptions(index=new, name="ci", scope=["upload"]))
    (other / "records").mkdir()
    add(NewTokenOptions(index=other, name="ci", scope=["upload"]))
    (file,) = (other / ".tokens").iterdir()
    assert file.name == "ci.json"
