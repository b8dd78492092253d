"""Says which step of the drafting of cases makes which call succeed, for the packages of this environment.

    PYTHONPATH=. ENVIRONMENT/bin/python tests/benchmarks/drafting.py [--without STEP]… MODULE[,MODULE…]…

ENVIRONMENT has torch and the wheels; each MODULE is what a recipe lists under `imports`. Prints a row for each op,
function and class: its state, the number of calls, and how the arguments of the good call differ from the first guess
(`rank`, `dtype`, `size`, `content` of a tensor, `value`), or `inside` if another good call passed them. The last row of
a package says how many calls succeeded. `--without STEP` turns a step off: what it does not lose, it does not decide.

The results of 2026-11-29 with torch 2.11 are in docs/explanation/decisions.md, "How a draft finds arguments".
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from builder.gate.draft import draft, guesses, search
from builder.gate.draft.guesses import Parameter
from builder.gate.draft.result import CALLED, NOT_CALLED
from builder.gate.draft.trial import TrialProcess
from builder.gate.outcome import Spec

#: What is read in an error message.
HINTS = ("names", "dtypes")
#: The steps that can be turned off.
STEPS = (*HINTS, "tensors-by-name", "inside", "shapes-of-all", "changes")


def turn_off(step: str) -> None:
    """Replace the code of a step."""
    read = search.read
    replaced: dict[str, tuple[Any, str, Any]] = {
        "tensors-by-name": (guesses, "_first_tensor", lambda _: ("tensor", "float", (guesses.SIZE,) * 2, "randn")),
        "inside": (draft, "_candidate", lambda parameters, _: guesses.first_guesses(parameters)),
        "shapes-of-all": (search, "_SHAPES_OF_ALL", ()),
        "changes": (search, "_changes", lambda *_: ()),
    }
    if step in HINTS:
        at = HINTS.index(step)
        replaced[step] = (search, "read", lambda *given: [*read(*given)[:at], (), *read(*given)[at + 1 :]])
    setattr(*replaced[step])


def difference(old: Sequence[Any], new: Sequence[Any]) -> str:
    """What differs between two guesses for each parameter, in words."""
    words = []
    for first, last in zip(old, new, strict=True):
        if first == last:
            continue
        if first[0] == last[0] == "tensor":
            same_rank = len(first[2]) == len(last[2])
            names = ("", "dtype", "size" if same_rank else "rank", "content")
            words.append("+".join(names[at] for at in (1, 2, 3) if first[at] != last[at]))
        else:
            words.append(last[0])
    return ", ".join(words) or "first guess"


def recorded_in(log: Path) -> None:
    """Write a line for each search to a file: the op, the number of calls and how the good one came about."""

    def noted(parameters: Sequence[Parameter], process: TrialProcess, starts: Sequence[Any], most: int) -> Any:
        candidate, trial, calls = found = search.search(parameters, process, starts, most)
        how = difference(guesses.first_guesses(parameters), candidate)
        how = "inside" if not trial.error and calls <= len(starts) else how
        with log.open("a") as file:
            file.write(json.dumps([process.op.partition("(")[0], calls, how]) + "\n")
        return found

    setattr(draft, "search", noted)  # noqa: B010 (no attribute that the module offers)


def main() -> int:
    """Draft for each package."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--without", action="append", default=[], choices=STEPS)
    parser.add_argument("packages", nargs="+", metavar="MODULE[,MODULE…]")
    options = parser.parse_args()
    for step in options.without:
        turn_off(step)
    for package in options.packages:
        pid = os.fork()
        if not pid:
            _one(package.split(","), options.without)
        os.waitpid(pid, 0)
    return 0


def _one(imports: list[str], without: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        log.touch()
        recorded_in(log)
        start = time.monotonic()
        found = draft.draft(Path("/nonexistent"), Spec(imports[0], imports, jobs=2, has_cases=False))
        seconds = time.monotonic() - start
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        last = {op: (calls, how) for op, calls, how in lines}
    for one in found.drafts:
        calls, how = last.get(one.op.partition("(")[0], (0, ""))
        print(f"  {one.state:10} {calls:5} {one.op:50} {how if one.state != NOT_CALLED else one.reason[:90]}")
    called = sum(one.state == CALLED for one in found.drafts)
    text = f" without {', '.join(without)}" if without else ""
    print(f"{imports[0]}{text}: {called} of {len(found.drafts)} called, {seconds:.0f} s {found.error}", flush=True)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
