"""Searches arguments that an op accepts: calls it, reads the error, changes one argument, calls it again.

The search is best-first. A message that no call produced before means that the arguments passed one more test of the
op, so the changes of these arguments are tried first.
"""

from __future__ import annotations

import heapq
import itertools
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from builder.gate.draft import guesses, hints
from builder.gate.draft.guesses import Guess
from builder.gate.draft.hints import Hints
from builder.gate.draft.signatures import Parameter
from builder.gate.draft.trial import Trial, TrialProcess

#: Limits of the search for one op.
SECONDS, CALLS, CRASHES = 20.0, 500, 150
#: The number of calls while nothing is known about how other ops call this one.
FEW_CALLS = 60
#: Errors that come from a guessed number and say nothing about the op.
_NOISE = re.compile(r"negative dimension|invalid shape dimension|allocate|out of memory|bad_alloc")
#: Ranks that all floating-point tensors get before one tensor is changed.
_RANKS_OF_ALL = (3, 4, 1, 5)
#: Costs of ranks that few ops take.
_RANKS = {0: 1.5, 5: 0.6, 6: 1.5}

Candidate = tuple[Guess, ...]


@dataclass(frozen=True)
class Found:
    """The result of a search."""

    candidate: Candidate  # the arguments that the op accepted; if there are none, the first guess
    called: bool  # whether the op accepted the arguments
    only_cuda: bool = False  # whether the op says that it has no CPU kernel
    error: str = ""  # the message of the last test that a call reached, if no call succeeded
    calls: int = 0  # the number of calls
    fact: dict[str, Any] = field(default_factory=dict)  # what the successful call returned


def as_candidate(parameters: Sequence[Parameter], given: Sequence[Guess], named: Mapping[str, Guess]) -> Candidate:
    """Return a value for each parameter: those of a call, and the most likely one for the others."""
    known = {**{one.name: guess for one, guess in zip(parameters, given)}, **named}
    return tuple(known.get(one.name) or next(guesses.alternatives(one)) for one in parameters)


class Search:
    """The search for one op."""

    def __init__(
        self,
        parameters: Sequence[Parameter],
        process: TrialProcess,
        starts: Sequence[Candidate] = (),
        most: int = CALLS,
    ) -> None:
        self._parameters, self._process, self._most = parameters, process, most
        self._first = guesses.first_guesses(parameters)
        self._starts = [*starts, self._first, *(guesses.with_rank(self._first, rank) for rank in _RANKS_OF_ALL)]
        self._queue: list[tuple[float, int, Candidate]] = []
        self._seen: set[Candidate] = set()
        self._messages: set[str] = set()
        self._kinds: set[str] = set()
        self._order = itertools.count()

    def run(self) -> Found:
        """Search until a call succeeds or a limit is reached."""
        deadline, calls, crashes = time.monotonic() + SECONDS, 0, 0
        best, last = 1.0, "every call ends the process"
        while (self._starts or self._queue) and time.monotonic() < deadline:
            if calls >= self._most or crashes >= CRASHES:
                break
            priority, candidate = (0.0, self._starts.pop(0)) if self._starts else heapq.heappop(self._queue)[::2]
            trial = self._process.call("plain", candidate)
            calls += 1
            if not trial.error:
                return Found(candidate, called=True, calls=calls, fact=trial.fact)
            if hints.only_cuda(trial.error):
                return Found(candidate, called=False, only_cuda=True, error=trial.error, calls=calls)
            crashes += trial.crashed
            base = self._expand(priority, candidate, trial)
            if base < best and not trial.crashed and not _NOISE.search(trial.error):
                best, last = base, trial.error
        return Found(self._first, called=False, error=last, calls=calls)

    def _expand(self, priority: float, candidate: Candidate, trial: Trial) -> float:
        """Queue the changes of a candidate; return their priority."""
        kind = hints.kind_of(trial.error)
        new_kind, new = kind not in self._kinds, trial.error not in self._messages
        self._kinds.add(kind)
        self._messages.add(trial.error)
        base = priority + (0.0 if new else 3.0)
        if new_kind and not trial.crashed:
            base = priority - 2.5
        # A crash says nothing about the argument that caused it.
        hint = Hints() if trial.crashed else hints.read(trial.error, self._parameters)
        for at, parameter in enumerate(self._parameters):
            named = 0.0 if not hint.names else -0.5 if parameter.name in hint.names else 1.5
            for cost, guess in _variants(parameter, candidate[at], hint):
                changed = (*candidate[:at], guess, *candidate[at + 1 :])
                if changed not in self._seen:
                    self._seen.add(changed)
                    heapq.heappush(self._queue, (base + 1.0 + named + cost, next(self._order), changed))
        return base


def _variants(parameter: Parameter, guess: Guess, hint: Hints) -> Iterator[tuple[float, Guess]]:
    """Yield other values for one argument with their costs; the message makes some of them cheap."""
    for number, other in enumerate(guesses.alternatives(parameter, hint.numbers)):
        wanted = other[0] == "value" and (other[1] in hint.numbers) and not isinstance(other[1], bool)
        yield 0.1 * number - 0.5 * wanted, other
    if guess[0] not in ("tensor", "tensors"):
        return
    tensor = guess if guess[0] == "tensor" else guess[1]
    for number, other in enumerate(guesses.tensor_variants(tensor, hint.numbers)):
        cost = _cost(tensor, other, hint) + 0.02 * number
        if guess[0] == "tensor":
            yield cost, other
        else:
            yield from ((cost + 0.1 * count, ("tensors", *[other] * count)) for count in (2, 1, 3))


def _cost(old: Guess, new: Guess, hint: Hints) -> float:
    """Return how unlikely this change is after the message, between -1 and 1."""
    if old[1] != new[1]:
        return -0.8 if new[1] in hint.dtypes else 1.5
    if len(old[2]) != len(new[2]):
        return _RANKS.get(len(new[2]), 0.2)
    if old[2] != new[2]:
        changed = next(size for one, size in zip(old[2], new[2]) if one != size)
        return -0.6 if changed in hint.numbers else 0.3
    return 0.5
