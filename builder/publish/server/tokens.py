"""Access tokens of an index: scopes, expiry, and only a hash of each token on disk.

Each token is a file `.tokens/NAME.json` in the folder of the index. A token is 256 random bits, so nobody can find it
by guessing, and a plain SHA-256 is enough. A slow hash protects short passwords; here it would only slow each request.
"""

import hashlib
import hmac
import json
import re
import secrets
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from packaging.utils import canonicalize_name

from builder.errors import Code, UsageError
from builder.publish.index.objects import Folder
from builder.untrusted import JsonError, parse_json, texts

FOLDER = ".tokens"
#: Programs that search texts for leaked secrets know a token by its prefix.
_PREFIX = "buildfarm_"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_PROJECT = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")


@dataclass(frozen=True)
class Token:
    """What is known of a token; the token itself is not kept."""

    #: Who uses it, such as `ci`; the access log has this name.
    name: str
    #: Of the token, hex.
    sha256: str
    #: `read`, `upload`, `prove`, or `upload:PROJECT` and `prove:PROJECT` with a normalized name. Every token may read.
    #: `prove` allows uploads too.
    scopes: tuple[str, ...]
    #: UTC time, ISO 8601.
    created: str
    #: UTC time, ISO 8601; "" for a token that does not expire.
    expires: str = ""

    def may(self, what: str, project: str = "") -> bool:
        """Whether the token allows uploads (`upload`) or proofs (`prove`) of a project, or without a name, of any."""
        scopes = [scope.partition(":") for scope in self.scopes]
        return any(kind in {what, "prove"} and (not project or named in {"", project}) for kind, _, named in scopes)

    def expired(self, now: datetime) -> bool:
        """Whether the token has expired."""
        return bool(self.expires) and datetime.fromisoformat(self.expires) <= now


class Tokens:
    """The tokens of one index."""

    def __init__(self, root: Path) -> None:
        self._folder = Folder(root / FOLDER)

    def add(self, name: str, scopes: tuple[str, ...], lifetime: timedelta | None) -> tuple[str, Token]:
        """Make a token; return it and what is kept of it. `lifetime` None: it does not expire.

        Raises UsageError for a name that is taken or not valid, and for an unknown scope.
        """
        if not _NAME.fullmatch(name):
            raise UsageError(
                "the name of a token has up to 64 letters, digits, `-` and `_`", Code.VALUE_INVALID, where=name
            )
        secret = _PREFIX + secrets.token_urlsafe(32)
        now = datetime.now(UTC).replace(microsecond=0)
        token = Token(
            name,
            hashlib.sha256(secret.encode()).hexdigest(),
            tuple(dict.fromkeys(parse_scope(scope) for scope in scopes)),
            now.isoformat(),
            (now + lifetime).isoformat() if lifetime is not None else "",
        )
        if not self._folder.create(f"{name}.json", (json.dumps(asdict(token), indent=1) + "\n").encode()):
            hint = "revoke it first, or choose another name"
            raise UsageError("the index has a token of this name", Code.ALREADY_EXISTS, where=name, hints=[hint])
        return secret, token

    def all(self) -> list[Token]:
        """Every token, also expired ones, sorted by name. Raises UsageError for an unreadable file."""
        tokens = []
        for name, data in self._folder.read_all(".").items():
            try:
                tokens.append(parse_json(data, lambda fields: Token(**fields | {"scopes": texts(fields["scopes"])})))
            except JsonError as error:
                raise UsageError(
                    f"this token cannot be read: {error}", Code.FILE_INVALID, where=f"{FOLDER}/{name}"
                ) from None
        return tokens

    def revoke(self, name: str) -> None:
        """Delete a token; raises UsageError if there is none of this name."""
        if not _NAME.fullmatch(name) or not self._folder.exists(f"{name}.json"):
            raise UsageError("the index has no token of this name", Code.NOT_IN_INDEX, where=name)
        self._folder.delete(f"{name}.json")

    def find(self, secret: str) -> Token | None:
        """What is known of a token; None if it is unknown, revoked or expired. Time does not depend on the secret."""
        digest = hashlib.sha256(secret.encode()).hexdigest()
        found = None
        for token in self.all():
            if hmac.compare_digest(token.sha256, digest):
                found = token
        return None if found is None or found.expired(datetime.now(UTC)) else found


def parse_scope(text: str) -> str:
    """A scope with a normalized project name; raises UsageError for an unknown scope."""
    kind, colon, project = text.partition(":")
    if text in {"read", "upload", "prove"}:
        return text
    if kind in {"upload", "prove"} and colon and _PROJECT.fullmatch(project):
        return f"{kind}:{canonicalize_name(project)}"
    sentence = f"{text!r} is not a scope; write read, upload, prove, upload:PROJECT or prove:PROJECT"
    raise UsageError(sentence, Code.VALUE_INVALID, where="--scope")


def parse_lifetime(text: str) -> timedelta | None:
    """The time that `90d`, `12h` or `never` means; raises UsageError."""
    if text == "never":
        return None
    match = re.fullmatch(r"([1-9]\d{0,4})([dh])", text)
    if not match:
        raise UsageError(
            f"{text!r} is not a time; write it like 90d or 12h, or write never", Code.VALUE_INVALID, where="--expires"
        )
    return timedelta(days=int(match[1])) if match[2] == "d" else timedelta(hours=int(match[1]))
