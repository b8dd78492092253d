"""What an index server serves, and to whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from builder.publish.index.levels import Level
from builder.store import Store


@dataclass(frozen=True)
class ServerSettings:
    """The settings of one server."""

    #: The folder of the index.
    root: Path
    #: Whether reading needs a token. Uploads always need one.
    token_required: bool = False
    #: Of an uploaded file, bytes.
    max_size: int = 4 * 2**30
    #: What the proofs of an uploaded wheel must show.
    required: Sequence[Level] = (Level.NONE,)
    #: Has the proofs of uploaded wheels; None: they have no proofs.
    store: Store | None = None
    #: Whether the lines of the access log are JSON.
    json_log: bool = False
