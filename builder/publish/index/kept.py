"""What an index keeps about a published wheel when the same file is published again."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from builder.proof import Proof, proofs_of
from builder.publish.index.entry import Entry
from builder.publish.index.objects import Objects
from builder.untrusted import JsonError, parse_json


@dataclass(frozen=True)
class Kept:
    """The evidence that an index has about a wheel; empty for a wheel that is not published."""

    proofs: tuple[Proof, ...] = ()
    #: The in-toto statement, or nothing.
    statement: bytes = b""
    #: Where an adopted wheel came from; "" for other wheels.
    origin: str = ""


#: Of a wheel that is not published.
NOTHING = Kept()


def kept_of(objects: Objects, entry: Entry | None) -> Kept:
    """What an index has about a published wheel, without what is lost or cannot be read; None: not published."""
    farm = entry.farm if entry else None
    if farm is None:
        return NOTHING
    proofs, statement = list[Proof](), b""
    with suppress(FileNotFoundError, JsonError):
        proofs = parse_json(objects.read(farm.proofs), proofs_of) if farm.proofs else []
    with suppress(FileNotFoundError):
        statement = objects.read(farm.statement) if farm.statement else b""
    return Kept(tuple(proofs), statement, farm.origin)
