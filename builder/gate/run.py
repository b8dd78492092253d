"""The gate's command line: reads the packed spec.json, runs the checks, prints a table or JSON, writes the answer."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from builder.gate import report
from builder.gate.check_table import CHECKS, MEANINGS
from builder.gate.outcome import FAILED, KEY_FILE, NOTHING_FAILED, SOMETHING_FAILED, Answer, Spec, signature
from builder.gate.processes.scheduler import GateInterrupted, Scheduler, terminate_as_interrupt
from builder.gate.system import rlimits
from builder.gate.system.process_tree import end_descendants

#: Seconds to wait for killed processes at the end.
_KILL_SECONDS = 2.0


def main(argv: Sequence[str]) -> int:
    """Run the gate packed in the folder that contains this package; return the exit status."""
    root = Path(__file__).resolve().parents[2]
    parser = _parser()
    options = parser.parse_args(argv)
    if unknown := [name for name in options.check if name not in CHECKS]:
        parser.error(f"unknown check {unknown[0]!r}; the checks are {', '.join(CHECKS)}")
    if options.jobs is not None and options.jobs < 1:
        parser.error(f"--jobs is {options.jobs}: the smallest value is 1")
    try:
        spec = Spec.read(root)
    except (OSError, ValueError, TypeError) as error:
        parser.error(f"cannot read spec.json of the gate: {error}")
    spec = replace(
        spec, checks=options.check or spec.checks, jobs=options.jobs or spec.jobs or len(os.sched_getaffinity(0))
    )
    if options.answer and not os.access(options.answer.parent, os.W_OK | os.X_OK):
        parser.error(f"{options.answer} cannot be written: its folder does not exist, or you may not write there")
    if options.draft:
        from builder.gate.draft.draft import main as draft  # noqa: PLC0415 (it imports torch)

        return draft(root, spec, options.answer)
    terminate_as_interrupt()
    rlimits.hide_memory()
    # The key for the answer leaves the disk before code of the extension runs; without one, a person has started this.
    key, path = b"", root / KEY_FILE
    if path.is_file():
        key = path.read_bytes()
        path.unlink()
    else:
        for name in ("torch", *spec.imports):
            if name.isidentifier() and importlib.util.find_spec(name) is None:
                said = f"gate: {sys.executable} has no module {name}: use the Python in which torch and the wheel are"
                print(f"{said} installed", file=sys.stderr)  # noqa: T201
    try:
        work_dir = Path(tempfile.mkdtemp(prefix="buildfarm-gate-"))
        try:
            answer = Scheduler(root, spec, work_dir, parent=os.getppid() if key else 0).run()
        finally:
            end_descendants(_KILL_SECONDS)  # such as processes that the import of a module has left behind
            shutil.rmtree(work_dir, ignore_errors=True)
    except GateInterrupted as stop:
        print("interrupted; no results were written", file=sys.stderr)  # noqa: T201
        return 128 + stop.number
    _deliver(spec, answer, options, key)
    return SOMETHING_FAILED if any(one.verdict == FAILED for one in answer.outcomes) else NOTHING_FAILED


def _parser() -> argparse.ArgumentParser:
    width = max(map(len, CHECKS))
    meanings = "\n".join(f"  {name:<{width}}  {meaning}" for name, meaning in MEANINGS.items())
    parser = argparse.ArgumentParser(
        prog="gate",
        description="Run every op of an extension in this Python and check its results.",
        epilog=f"checks:\n{meanings}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--answer", metavar="FILE", type=Path, help="write the results to FILE as JSON")
    parser.add_argument("--json", action="store_true", help="print the results as JSON instead of a table")
    parser.add_argument("--check", metavar="NAME", action="append", default=[], help="run only this check; repeatable")
    parser.add_argument("--draft", action="store_true", help="run no check; try inputs for each op without a case")
    parser.add_argument("--jobs", metavar="N", type=int, help="number of parallel tasks (default: CPU cores)")
    return parser


def _deliver(spec: Spec, answer: Answer, options: argparse.Namespace, key: bytes) -> None:
    data = json.loads(json.dumps(asdict(answer), default=str))
    text = json.dumps({**data, "signature": signature(key, data)} if key else data, indent=1)
    if options.answer:  # a reader never sees an incomplete file
        temporary = options.answer.with_name(f".{options.answer.name}.{os.getpid()}")
        temporary.write_text(text + "\n", encoding="utf-8")
        temporary.replace(options.answer)
    title = f"{spec.name}: {report.count_checks(answer.outcomes, spec.checks or CHECKS)}"
    print(text if options.json else report.table(title, answer))  # noqa: T201
