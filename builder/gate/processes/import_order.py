"""The check "import-order": which orders of torch, the extension and its companions run, and what follows from them.

Each order ends with a call of one op. An order that begins with torch is a fork of a process that has imported torch
and nothing else; if it fails, it runs again in a new Python, which decides. Any other order is a new Python, because
conflicts between libraries show only if nothing else was imported before. An order that crashes runs once more with
crash handlers for its native stack; the first run has no handlers, as in a user's process.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from builder.gate.amounts import counted, grouped
from builder.gate.check_table import CHECKS
from builder.gate.outcome import FAILED, NOT_RUN, PASSED, Outcome, Spec
from builder.gate.processes.jobs import Job
from builder.gate.processes.journal import LOG
from builder.gate.processes.order_process import CALLED, FORK, NEW, STEP, WATCH
from builder.gate.system.process_end import ProcessExit, describe_exit, fatal_signal, tail

#: Up to this many modules, orders that contain each pair in both directions are all orders.
ALL = 3
#: torch's message for a second TORCH_LIBRARY of one name.
_TWICE = re.compile(r"Only a single (?:STABLE_)?TORCH_LIBRARY can be used to register the namespace (\w+)")
_MAX_OUTPUT = 4000  # characters of output in the evidence


@dataclass(frozen=True)
class OrderRun:
    """How one order ended."""

    order: tuple[str, ...]
    #: Wait status.
    status: int
    output: str
    #: The limit that it was killed for, and what that says.
    end: ProcessExit = field(default_factory=lambda: ProcessExit(0))

    @property
    def good(self) -> bool:
        """Whether every module was imported and, if a case allows it, an op was called."""
        return self.status == 0 and not self.end.limit

    @property
    def step(self) -> str:
        """The last step: "import torch", "call ns::op"."""
        return (_told(STEP, self.output) or ["the start of Python"])[-1]

    @property
    def called(self) -> str:
        """The op that was called at the end and returned, or ""."""
        return (_told(CALLED, self.output) or [""])[-1].strip()

    @property
    def imported(self) -> str:
        """The module whose import was the last step, or ""."""
        name = self.step[len("import ") :] if self.step.startswith("import ") else ""
        return name if name in self.order else ""

    @property
    def so_far(self) -> Sequence[str]:
        """The modules imported until it ended."""
        return self.order[: self.order.index(self.imported) + 1] if self.imported else self.order

    @property
    def kind(self) -> tuple[str, int]:
        """The kind of failure: the last step and the signal."""
        return self.step, fatal_signal(self.status, self.output)

    def sentence(self) -> str:
        """Return how it ended, to follow its last step."""
        if self.end.limit == "time":
            return f"does not end within {self.end.allowed}"
        if self.end.limit:
            return self.end.sentence()
        text = describe_exit(self.status, self.output)
        if twice := _TWICE.search(text):
            text += f": two libraries have `TORCH_LIBRARY({twice[1]}, m)`; rename the namespace in one, or use"
            text += " `TORCH_LIBRARY_FRAGMENT` in both"
        return text


def _told(prefix: str, output: str) -> list[str]:
    """Return the lines of the output with this prefix, without it."""
    return [line[len(prefix) :] for line in output.splitlines() if line.startswith(prefix)]


def orders_of(names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield orders that contain each pair of modules in both directions: all orders of up to three modules.

    These are: for each pair (a, b) the order a, b, rest; and for each module the order rest, module. About n * n. The
    first module is torch, which comes last in the rest.
    """
    for first, second in itertools.permutations(names, 2):
        rest = [name for name in names[1:] if name not in {first, second}]
        yield first, second, *rest, *([names[0]] if names[0] not in {first, second} else [])
    for last in names:
        yield *(name for name in names if name != last), last


def allowed_order(order: tuple[str, ...], spec: Spec) -> tuple[str, ...]:
    """Return the order with the modules of `needs_first` moved before the first module of the extension."""
    first = min((order.index(name) for name in spec.imports if name not in spec.needs_first), default=0)
    late = [name for name in order[first:] if name in spec.needs_first]
    return (*order[:first], *late, *(name for name in order[first:] if name not in late))


class ImportOrders:
    """The orders of a run: those that wait, how the others have ended, and at the end what follows from them."""

    def __init__(self, spec: Spec, modules: Mapping[str, str | None], versions: Mapping[str, str]) -> None:
        """`modules` has the module of each companion, or None if it is not installed; `versions` that of each module.

        `order_process` has found both.
        """
        self._spec, self._versions, self._began = spec, versions, time.monotonic()
        self._missing = [companion for companion, module in modules.items() if not module]
        self._names = list(dict.fromkeys(["torch", *spec.needs_first, *spec.imports, *filter(None, modules.values())]))
        orders = dict.fromkeys(allowed_order(order, spec) for order in orders_of(self._names))
        self._orders = sorted(orders, key=lambda order: order[0] != "torch")
        self._waiting = [self._job(order, FORK if order[0] == "torch" else NEW) for order in self._orders]
        self._left = len(self._waiting)
        self._runs: list[OrderRun] = []
        self._watched: dict[tuple[str, int], OrderRun] = {}

    @staticmethod
    def _job(order: tuple[str, ...], mode: str) -> Job:
        return Job(CHECKS["import-order"], order=order, mode=mode)

    def take(self) -> Job | None:
        """Remove and return the next order; None if none waits."""
        return self._waiting.pop(0) if self._waiting else None

    def ended(self, job: Job) -> list[Outcome]:
        """Store how an order has ended; return the outcomes of the check after the last one."""
        output = tail(job.folder / LOG, 1 << 16)
        again = self.add(OrderRun(job.order, job.status, output, job.process_exit()), job.mode)
        self._waiting += again
        self._left += len(again) - 1
        return [] if self._left else self.outcomes()

    def add(self, run: OrderRun, mode: str) -> list[Job]:
        """Store a run; return the orders that have to run because of it."""
        if mode == FORK and not run.good:
            return [self._job(run.order, NEW)]
        if mode == WATCH:
            self._watched[run.kind] = run
            return []
        self._runs.append(run)
        if self._left > 1:
            return []
        # The last one. Of each kind of crash, the shortest order shows its stacks.
        crashes = [one for one, *_ in self._failures().values() if fatal_signal(one.status, one.output)]
        return [self._job(one.order, WATCH) for one in crashes]

    def _failures(self) -> dict[tuple[str, int], list[OrderRun]]:
        """Return the orders with each kind of failure, the shortest first."""
        failed = sorted((one for one in self._runs if not one.good), key=lambda one: len(one.so_far))
        return grouped((run.kind, run) for run in failed)

    def outcomes(self) -> list[Outcome]:
        """Return the outcome of all orders, and "not run" for each companion that is not installed."""
        reason = "{0} is not installed, so no order with this package can be tested"
        missing = [Outcome("import-order", "", one, NOT_RUN, reason.format(one)) for one in self._missing]
        self._runs.sort(key=lambda run: self._orders.index(run.order))
        good = [run for run in self._runs if run.good]
        ended = {", ".join(run.order): "works" if run.good else run.sentence() for run in self._runs}
        evidence: dict[str, Any] = {"orders": ended}
        verdict, reason = self._failed(good, evidence) if len(good) < len(self._runs) else self._worked(good)
        seconds = time.monotonic() - self._began
        return [*missing, Outcome("import-order", "", "", verdict, reason, seconds, evidence)]

    def _worked(self, runs: Sequence[OrderRun]) -> tuple[str, str]:
        figure = counted(len(runs), "order")
        if self._spec.needs_first:
            figure += f" in which {', '.join(self._spec.needs_first)} precedes the extension (`needs_first`)"
        elif len(self._names) > ALL:
            figure += f" (each pair of {len(self._names)} modules in both directions)"
        if not any(run.called for run in runs):
            return NOT_RUN, f"no case could be called after the imports, which alone succeed in {figure}"
        if len(first := {run.called: ", ".join(run.order) for run in runs}) > 1:
            shown = "; ".join(f"after {order}: {op or 'none, every op raises'}" for op, order in first.items())
            return FAILED, f"the import order changes which op is the first that works: {shown}"
        return PASSED, figure

    def _failed(self, good: Sequence[OrderRun], evidence: dict[str, Any]) -> tuple[str, str]:
        failures = []
        for kind, alike in self._failures().items():
            run = alike[0]
            shown = self._watched.get(kind, run)
            so_far = ", then ".join(map(self._versioned, run.so_far))
            failures.append(f"{so_far}: {run.step} {shown.sentence()}{self._cure(run, alike, good)}")
            versions = {name: self._versions.get(name, "") for name in run.order}
            limit = {"limit": shown.end.limit} if shown.end.limit else {}
            details = {"stderr": shown.output[-_MAX_OUTPUT:], **limit, "versions": versions}
            evidence.setdefault("stacks", {})[", ".join(run.order)] = details
        works = f"; the order {', '.join(good[0].order)} works" if good else "; no order works"
        return FAILED, "; ".join(failures) + works

    def _versioned(self, module: str) -> str:
        return f"{module} {self._versions.get(module, '')}".strip()

    def _cure(self, run: OrderRun, alike: Sequence[OrderRun], runs: Sequence[OrderRun]) -> str:
        """Return which module must come later or earlier, as a sentence, or "". `alike` fail like `run`; `runs` work.

        A module is guilty if it precedes the failing import in every failed order and in no good one. A module is
        needed if it does so in every good order and in no failed one.
        """
        victim = run.imported

        def before(one: OrderRun) -> set[str]:
            return set(one.order[: one.order.index(victim)])

        good = [before(one) for one in runs if victim in one.order]
        if not victim or not good:
            return ""
        bad = [before(one) for one in alike]
        guilty = set.intersection(*bad).difference(*good)
        if named := ", ".join(self._versioned(one) for one in run.order if one in guilty):
            return f". The failure occurs only if {named} is imported before {victim}: import {victim} first"
        needed = [name for name in run.order if name in set.intersection(*good).difference(*bad)]
        if victim not in self._spec.imports or not needed:
            return ""
        return (
            f". The failure occurs only if {needed[0]} is not imported before {victim}: add `import {needed[0]}` at "
            f"the top of the package, or `needs_first: [{needed[0]}]` to the recipe"
        )
