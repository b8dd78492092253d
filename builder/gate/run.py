"""The gate as a program: reads spec.json beside itself, runs every check, writes the answer, says it in a table."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from builder.gate import report
from builder.gate.conductor import Conductor
from builder.gate.outcome import CHECKS, FAILED, Answer, Spec
from builder.gate.processes import Interrupted, terminate_as_interrupt

#: Exit statuses beside 128 + signal.
NOTHING_FAILED, SOMETHING_FAILED, USAGE = 0, 1, 2


def main(argv: Sequence[str]) -> int:
    """Run the gate of the folder this package lies in; the exit status."""
    root = Path(__file__).resolve().parents[2]
    parser = _parser()
    options = parser.parse_args(argv)
    unknown = [name for name in options.check if name not in CHECKS]
    if unknown:
        parser.error(f"there is no check {unknown[0]!r}; there are {', '.join(CHECKS)}")
    if options.jobs is not None and options.jobs < 1:
        parser.error(f"--jobs is {options.jobs}: at least 1 is needed")
    try:
        spec = Spec(**json.loads((root / "spec.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        parser.error(f"spec.json of the gate cannot be read: {error}")
    spec = replace(
        spec, checks=options.check or spec.checks, jobs=options.jobs or spec.jobs or len(os.sched_getaffinity(0))
    )
    terminate_as_interrupt()
    try:
        room = Path(tempfile.mkdtemp(prefix="buildfarm-gate-"))
        try:
            answer = Conductor(root, spec, room).run()
        finally:
            shutil.rmtree(room, ignore_errors=True)
    except Interrupted as stop:
        print("interrupted: nothing is proven", file=sys.stderr)  # noqa: T201
        return 128 + stop.number
    _deliver(spec.name, answer, options)
    return SOMETHING_FAILED if any(one.verdict == FAILED for one in answer.outcomes) else NOTHING_FAILED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gate", description="Executes every op of an extension in this Python.")
    parser.add_argument("--answer", metavar="FILE", type=Path, help="write the answer as JSON")
    parser.add_argument("--junit", metavar="FILE", type=Path, help="write the outcomes as JUnit XML")
    parser.add_argument("--json", action="store_true", help="print the answer as JSON instead of a table")
    parser.add_argument("--check", metavar="NAME", action="append", default=[], help="run this check only; repeatable")
    parser.add_argument("--jobs", metavar="N", type=int, help="processes at once")
    return parser


def _deliver(name: str, answer: Answer, options: argparse.Namespace) -> None:
    text = json.dumps(answer.to_json(), indent=1)
    if options.answer:
        _write(options.answer, text + "\n")
    if options.junit:
        _write(options.junit, report.junit({name: answer}))
    print(text if options.json else report.table(name, answer))  # noqa: T201


def _write(path: Path, text: str) -> None:
    """Whole or not at all."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(path)
