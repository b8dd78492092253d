"""Fuzz the readers: `python -m tests.fuzz --wheels 20000 --sdists 5000 --yaml 5000 --commands 2000 --seed 1`.

Each input has a folder and a seed of its own. The seed is printed with its error: `python -m tests.fuzz --only wheels
1:417`. An input fails if it raises an error that is not one of ours, takes more than 5 s of CPU, needs more than 1 GB
of memory, or writes outside of its folder. Prints a table and exits 1 if an input failed.
"""

import argparse
import contextlib
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from tests.fuzz.targets import TARGETS, Target

TARGETS_BY_NAME = {target.name: target for target in TARGETS}
#: CPU seconds for one input, and bytes of memory for the whole process.
SECONDS, MEMORY = 5, 10**9


class HangError(Exception):
    """An input took more than SECONDS of CPU time."""


@dataclass
class Result:
    """The result of one run."""

    #: Of the target.
    name: str
    #: inputs.
    count: int
    #: CPU time of all inputs.
    seconds: float = 0.0
    #: CPU time of the slowest input, and its seed.
    slowest: tuple[float, str] = (0.0, "")
    #: The place of each bug, with one seed and the end of the traceback.
    faults: dict[str, str] = field(default_factory=dict)

    def table(self) -> str:
        """One line of figures, and the faults."""
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        line = (
            f"{self.name}: {self.count} inputs, {len(self.faults)} kinds of faults, {self.seconds:.0f} s of CPU,"
            f" slowest {self.slowest[0]:.2f} s ({self.slowest[1]}), peak memory {peak} MiB"
        )
        return "\n".join([line, *(f"  {place}: {text}" for place, text in self.faults.items())])


def fuzz(name: str, seed: int, count: int, *, seconds: float = float("inf")) -> Result:
    """Run inputs 0 to `count` of a seed, for about `seconds` of CPU time."""
    target, result = TARGETS_BY_NAME[name], Result(name, 0)
    with _prepared(target) as (shared, folder), _memory_limit():
        while result.count < count and result.seconds < seconds:
            key, started = f"{seed}:{result.count}", time.process_time()
            result.count += 1
            try:
                with _in_folder(folder / "one") as one, _time_limit():
                    target.run(shared, random.Random(key), one)
            except Exception as error:  # noqa: BLE001 - every error is a finding
                result.faults.setdefault(_place(error), f"{name} {key}: {type(error).__name__}: {str(error)[-300:]}")
            used = time.process_time() - started
            result.seconds += used
            result.slowest = max(result.slowest, (used, key))
    return result


def run_one(name: str, key: str) -> None:
    """Run one input again under the same limits, with its traceback."""
    target = TARGETS_BY_NAME[name]
    with _prepared(target) as (shared, folder), _memory_limit(), _in_folder(folder / "one") as one, _time_limit():
        target.run(shared, random.Random(key), one)


@contextlib.contextmanager
def _prepared(target: Target) -> Iterator[tuple[object, Path]]:
    with tempfile.TemporaryDirectory(prefix="buildfarm-fuzz-") as folder:
        (Path(folder) / "shared").mkdir()
        yield target.prepare(Path(folder) / "shared"), Path(folder)


@contextlib.contextmanager
def _in_folder(folder: Path) -> Iterator[Path]:
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@contextlib.contextmanager
def _time_limit() -> Iterator[None]:
    def stop(_number: int, _frame: FrameType | None) -> None:
        raise HangError(f"more than {SECONDS} s of CPU")

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@contextlib.contextmanager
def _memory_limit() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def _place(error: BaseException) -> str:
    """File and line of the last frame of the program itself."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "/builder/" in frame.filename] or frames
    return f"{ours[-1].filename.rpartition('/builder/')[2]}:{ours[-1].lineno} {type(error).__name__}"


def main() -> int:
    """Run the chosen targets; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    for name in TARGETS_BY_NAME:
        parser.add_argument(f"--{name}", type=int, default=0, metavar="COUNT")
    parser.add_argument("--seed", type=int, action="append", help="repeatable; default 1")
    parser.add_argument("--only", nargs=2, metavar=("TARGET", "SEED:NUMBER"), help="repeat one input")
    options = parser.parse_args()
    if options.only:
        run_one(*options.only)
        return 0
    failed = 0
    for seed in options.seed or [1]:
        for name in TARGETS_BY_NAME:
            if count := getattr(options, name):
                result = fuzz(name, seed, count)
                print(result.table(), flush=True)
                failed += len(result.faults)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
