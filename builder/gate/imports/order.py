"""One order of imports: which orders are tried, how one ended, and which module must come first."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata

from builder.gate.outcome import Spec
from builder.gate.system.crash import fatal_signal

#: Up to this many modules every order is tried; with more modules n, about n * n orders.
ALL = 3
#: Prefixes of the lines that the process of an order prints.
STEP, CALLED, LOADED, STOPPED = "buildfarm-step ", "buildfarm-called ", "buildfarm-loaded ", "buildfarm-stopped"


@dataclass(frozen=True)
class Run:
    """How one order ended; `status` is a wait status."""

    order: tuple[str, ...]
    status: int
    stdout: str
    stderr: str
    seconds: float
    in_time: bool

    @property
    def good(self) -> bool:
        """Whether every module was imported and, if a case allows it, an op was called."""
        return self.status == 0 and self.in_time

    @property
    def stopped(self) -> bool:
        """Whether it ended before torch, because no import before torch loaded a library."""
        return STOPPED in self.stdout.splitlines()

    @property
    def loaded(self) -> list[tuple[frozenset[str], bool]]:
        """For each module, in the order of the imports: which modules of the order are imported after it, and whether
        its import has loaded a library.
        """
        lines = [line[len(LOADED) :] for line in self.stdout.splitlines() if line.startswith(LOADED)]
        return [(frozenset(names), bool(libraries)) for names, libraries in map(json.loads, lines)]

    @property
    def step(self) -> str:
        """The last step: "import torch", "call ns::op"."""
        steps = [line[len(STEP) :] for line in self.stderr.splitlines() if line.startswith(STEP)]
        return steps[-1] if steps else "the start of Python"

    @property
    def called(self) -> str:
        """The op that was called at the end and returned, or ""."""
        called = [line[len(CALLED) :] for line in self.stdout.splitlines() if line.startswith(CALLED)]
        return called[-1].strip() if called else ""

    @property
    def imported(self) -> str:
        """The module whose import was the last step, or ""."""
        name = self.step[len("import ") :] if self.step.startswith("import ") else ""
        return name if name in self.order else ""

    @property
    def so_far(self) -> list[str]:
        """The modules imported until it ended, with versions."""
        order = self.order[: self.order.index(self.imported) + 1] if self.imported else self.order
        return [f"{one} {version_of(one)}".strip() for one in order]

    @property
    def kind(self) -> tuple[str, int]:
        """The kind of failure: the last step and the signal."""
        return self.step, fatal_signal(self.status, self.stderr)


def orders_of(names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield every order of up to three modules; for more, orders that contain each pair in both directions.

    These are: for each pair (a, b) the order a, b, rest; and for each module the order rest, module. About n * n. The
    first module is torch, which comes last in the rest.
    """
    if len(names) <= ALL:
        yield from itertools.permutations(names)
        return
    for first, second in itertools.permutations(names, 2):
        rest = [name for name in names[1:] if name not in {first, second}]
        yield first, second, *rest, *([names[0]] if names[0] not in {first, second} else [])
    for last in names:
        order = (*(name for name in names if name != last), last)
        if order[:2] != tuple(names[:2]):
            yield order


def allowed_order(order: tuple[str, ...], spec: Spec) -> tuple[str, ...]:
    """Return the order with the modules of `needs_first` moved before the first module of the extension."""
    first = min((order.index(name) for name in spec.imports if name not in spec.needs_first), default=0)
    late = [name for name in order[first:] if name in spec.needs_first]
    return (*order[:first], *late, *(name for name in order[first:] if name not in late))


def repeats(order: Sequence[str], runs: Sequence[Run]) -> tuple[str, ...]:
    """Return the order of an earlier run that did what this order would do; () if none is known.

    An import of a module that is imported already runs no code. If a module loaded no library when it was the first
    import of a process, nor in any other run, its place in an order does not change how libraries are loaded.
    """
    loud = {name for run in runs for name, (_, libraries) in zip(run.order, run.loaded) if libraries}
    quiet = {run.order[0] for run in runs if run.loaded and not run.loaded[0][1]} - loud
    after: dict[tuple[str, ...], frozenset[str]] = {(): frozenset()}
    done: dict[tuple[str, ...], tuple[str, ...]] = {}
    for run in runs:
        state: tuple[str, ...] | None = ()
        for name, (loaded, _) in zip(run.order, run.loaded):
            if name in quiet or state is None or name in after.get(state, ()):
                continue
            state = (*state, name)
            after.setdefault(state, loaded)
        if run.good and not run.stopped:
            done.setdefault(state or (), run.order)
    wanted: tuple[str, ...] = ()
    for name in order:
        if wanted not in after:
            return ()
        if name not in quiet and name not in after[wanted]:
            wanted = (*wanted, name)
    return done.get(wanted, ())


def only_after(run: Run, alike: Sequence[Run], runs: Sequence[Run]) -> str:
    """Return the modules that precede the failing import in every failed order and in no good order, as text."""
    victim = run.imported
    if not victim:
        return ""
    before = [set(one.order[: one.order.index(victim)]) for one in alike]
    clean = [set(one.order[: one.order.index(victim)]) for one in runs if one.good and victim in one.order]
    suspects = set.intersection(*before) if before else set()
    if clean:
        suspects = {one for one in suspects if not any(one in others for others in clean)}
    named = ", ".join(f"{one} {version_of(one)}".strip() for one in run.order if one in suspects)
    if not named or not clean:
        return ""
    return f". The failure occurs only if {named} is imported before {victim}: import {victim} first"


def needs_first(run: Run, alike: Sequence[Run], runs: Sequence[Run], spec: Spec) -> str:
    """Return the module that precedes the failing import in every good order and in no failed order, as text."""
    victim = run.imported
    good = [one for one in runs if one.good and victim in one.order]
    if victim not in spec.imports or not good:
        return ""
    before = set.intersection(*({*one.order[: one.order.index(victim)]} for one in good))
    before -= {name for one in alike for name in one.order[: one.order.index(victim)]}
    needed = [name for name in run.order if name in before]
    if not needed:
        return ""
    return (
        f". The failure occurs only if {needed[0]} is not imported before {victim}: add `import {needed[0]}` at the "
        f"top of the package, or `needs_first: [{needed[0]}]` to the recipe"
    )


def version_of(module: str) -> str:
    """Return the version of a module's distribution, or ""."""
    name = module.partition(".")[0]
    for candidate in (name, name.replace("_", "-")):
        try:
            return metadata.version(candidate)
        except metadata.PackageNotFoundError:
            continue
    return ""
