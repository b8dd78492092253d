"""Environments of cells that are made while their wheel is compiled."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress

from builder.errors import BuildfarmError
from builder.matrix.axes import Cell
from builder.process import Interrupted, kill_orphans
from builder.proofs.cells.cell_environment import LocalEnvironment, LocalEnvironments
from builder.proofs.cells.turns import TURNS
from builder.resources import environments_that_fit
from builder.store import Store, work_name

#: Seconds for a program to end that is killed.
_LOOK_SECONDS = 0.2


#: An environment without its wheel, whose log has the output of the programs that made it, and what removes it.
Early = tuple[LocalEnvironment, ExitStack]


class Ahead:
    """The environments of the first cells of a build, one made after the other in a thread.

    They say nothing about a wheel: where one cannot be made now, that is tried again when the wheel is there.
    """

    def __init__(
        self, store: Store, environments: LocalEnvironments, digest: str, cells: Sequence[Cell], *, cases: bool
    ) -> None:
        """Begin. `digest` is that of the build. There are as many as may run, and as the disk has room for."""
        self._store, self._environments, self._digest, self._cases = store, environments, digest, cases
        room = environments_that_fit(store.root) - 1
        self._pool = ThreadPoolExecutor(1)
        wanted = cells[: max(0, min(TURNS.most(), room))]
        self._made: dict[Cell, Future[Early]] = {cell: self._pool.submit(self._make, cell) for cell in wanted}

    def _name(self, cell: Cell) -> str:
        return f"prove-{work_name(self._digest)}-{cell}"

    def _make(self, cell: Cell) -> Early:
        with ExitStack() as stack:
            folder = stack.enter_context(self._store.work(self._name(cell)))
            log, owner = folder / "log", self._store.owner(self._name(cell))
            opened = self._environments.open(cell, folder, owner=owner, log=log, cases=self._cases)
            return stack.enter_context(opened), stack.pop_all()

    def __contains__(self, cell: Cell) -> bool:
        """Whether an environment of the cell is or will be made."""
        return cell in self._made

    def take(self, cell: Cell) -> Early | None:
        """The environment of a cell, which the caller removes; None if there is none."""
        found = self._made.pop(cell, None)
        if found and not found.cancel():  # waits for one that is being made
            with suppress(BuildfarmError, OSError, Interrupted):
                return found.result()
        return None

    def close(self) -> None:
        """Make no more, and remove those that were not taken."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        for cell, made in [*self._made.items()]:
            while made.running():
                kill_orphans(self._store.owner(self._name(cell)))
                wait([made], _LOOK_SECONDS)
            if early := self.take(cell):
                early[1].close()
