"""How many cells are proven at the same time on this machine, and the threads that prove them."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

from builder.gate.amounts import counted, size_text
from builder.log import print_line
from builder.process import in_threads, raise_if_interrupted
from builder.proofs.cells.driver import gpu_here
from builder.resources import SPARE_MEMORY, Resources, environments_that_fit, measure_resources

T = TypeVar("T")

#: Bytes of memory that the proof of a cell needs (measured: 1.3 GiB for ms_deform_attn with torch 2.11, most of it for
#: what torch's compiler imports). An op may take more; the gate limits it.
CELL_MEMORY = 3 << 29
#: Seconds between two looks for an interrupt.
_LOOK_SECONDS = 0.5


class Turns:
    """Lets as many cells run their wheel at the same time as this machine has cores and memory for.

    With a GPU it is one at a time: the ops of two cells would share the memory of the GPU, and run into time limits.
    """

    def __init__(
        self, measure: Callable[[], Resources] = measure_resources, gpu: Callable[[], bool] = gpu_here
    ) -> None:
        """`measure` and `gpu` say what this machine has."""
        self._measure, self._gpu = measure, gpu
        self._changed = threading.Condition()
        self._running = 0
        self._alone = False  # whether the cell that runs allows no other
        self._most = 1  # how many may run; measured when none runs
        self._said = False
        self._expected = 0  # cells that run, and those that still will

    @contextmanager
    def turn(self, *, alone: bool = False, on_wait: Callable[[], object] = lambda: None) -> Iterator[int]:
        """Wait for a turn, and yield how many cores the body may use. `alone`: no other cell runs meanwhile.

        `on_wait` is called if this cell has to wait. Raises Interrupted.
        """
        with self._changed:
            if not self._may_run(alone=alone):
                on_wait()
            while not self._may_run(alone=alone):
                self._changed.wait(_LOOK_SECONDS)
                raise_if_interrupted()
            self._running += 1
            self._alone = alone
            sharing = 1 if alone else min(self._most, max(self._expected, self._running))
        try:
            yield max(1, self._measure().cores // sharing)
        finally:
            with self._changed:
                self._running -= 1
                self._alone = False
                self._changed.notify_all()

    def _may_run(self, *, alone: bool) -> bool:
        if not self._running:
            self._most = self._at_once()
        return not self._alone and self._running < (1 if alone else self._most)

    def most(self) -> int:
        """How many cells may run."""
        with self._changed:
            return self._most if self._running else self._at_once()

    def _at_once(self) -> int:
        """How many cells may run, when none runs; says once that it is the memory that allows no more."""
        if self._gpu():
            return 1
        resources = self._measure()
        fits = max(1, (resources.memory - SPARE_MEMORY) // CELL_MEMORY)
        if fits < min(resources.cores, self._expected) and not self._said:
            self._said = True
            print_line(
                f"proving {counted(fits, 'cell')} at a time: {size_text(resources.memory)} of memory are free, and"
                f" {fits + 1} cells at the same time need {size_text((fits + 1) * CELL_MEMORY + SPARE_MEMORY)}"
            )
        return min(resources.cores, fits)

    def side_by_side(self, tasks: Sequence[Callable[[], T]], folder: Path, *, most: int | None = None) -> list[T]:
        """Run tasks that take a turn each, in at most so many threads, and return what they return, in order.

        There is one thread more than turns, so that the next environment is made meanwhile; fewer if the disk of
        `folder` has no room for as many environments. If a task raises, those that run end, no other begins, and its
        exception is raised.
        """
        room = most or environments_that_fit(folder)
        with self._changed:
            self._expected += len(tasks)
        threads = max(1, min(len(tasks), room, 1 + self.most()))
        left = len(tasks)

        def run(task: Callable[[], T]) -> T:
            nonlocal left
            try:
                return task()
            finally:
                with self._changed:
                    left -= 1
                    self._expected -= 1

        try:
            return in_threads([partial(run, task) for task in tasks], threads)
        finally:
            with self._changed:
                self._expected -= left


#: Of this process: two commands beside each other do not know of each other.
TURNS = Turns()
