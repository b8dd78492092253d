"""What a worker keeps from `buildfarm store prune`: what its tasks use, and what others still copy from it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from builder.store import Store

#: Seconds after the end of a task in which the client and other workers copy its log and its wheel.
SECONDS_TO_COPY = 3600.0


class Holds:
    """The marks of one worker on paths of its store, counted."""

    def __init__(self, store: Store, later: Callable[[float, Callable[[], None]], object]) -> None:
        """`later` calls a function after some seconds."""
        self._store = store
        self._later = later
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    @contextmanager
    def held(self, *targets: str) -> Iterator[None]:
        """Mark paths of the store, or RUN, as used, until SECONDS_TO_COPY after the body ended.

        Waits while `store prune` deletes one of them.
        """
        for target in targets:
            with self._lock:
                self._counts[target] += 1
                self._store.use(target)
        try:
            yield
        finally:
            self._later(SECONDS_TO_COPY, lambda: self._drop(targets))

    def _drop(self, targets: tuple[str, ...]) -> None:
        for target in targets:
            with self._lock:
                self._counts[target] -= 1
                if not self._counts[target]:
                    del self._counts[target]
                    self._store.release(target)
