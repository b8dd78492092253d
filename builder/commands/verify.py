"""`buildfarm verify`: judge wheels from their files alone."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.markup import escape

from builder.cli.options import CellOptions, RunOptions, check_driver
from builder.commands.folders import open_store
from builder.commands.targets import ForeignWheel, foreign_wheels
from builder.errors import BuildfarmError, Code, Exit, UsageError
from builder.gate.amounts import size_text
from builder.gate.report import line
from builder.log import print_error, print_result, print_warning
from builder.matrix.axes import Gpu, Python
from builder.matrix.compat import Compat
from builder.matrix.plan import selected
from builder.option import argument, option
from builder.proof import Verdict
from builder.proofs.inventory import inventory_of_index, shelf_of
from builder.proofs.verify.judge import Judge, WheelVerdict
from builder.proofs.verify.torch_window import Linker
from builder.publish.proof_lines import causes, counts
from builder.publish.terminal import cause_lines, coloured_counts, marked, output_width, to_text
from builder.store import Store
from builder.wheelfile.facts import open_wheel, read_facts

#: What is wrong with a file that is no readable wheel; the other wheels of the command line are judged.
_UNREADABLE = {Code.WHEEL_DAMAGED, Code.WHEEL_MISLABELLED}


#: Files that are no readable wheels, each with its error.
Unreadable = Mapping[ForeignWheel, UsageError]


@dataclass(frozen=True, kw_only=True)
class VerifyOptions(CellOptions, RunOptions):
    """The options of `buildfarm verify`."""

    wheels: list[str] = argument("File, folder with wheels, URL, or NAME==VERSION on the package index.", "WHEEL")
    gpu: list[str] | None = option(
        "A GPU that must run the wheel: its name (RTX 4090), 8.9 or sm_89. Repeatable.", "GPU"
    )
    driver: str = option("NVIDIA driver of the GPUs: 550 or 550.54.14.", "VERSION", default="")
    max_size: str = option("The largest wheel file that passes, such as 300MB or 1GiB.", "SIZE", default="")
    index: str = ""


def verify(options: VerifyOptions) -> Exit:
    """Judge any wheel from its file alone: with which torch, GPUs and systems it works. Executes nothing in it.

    The wheel is linked with the torch of --torch, or with those that it claims. To read which symbols a release
    defines, its wheel (up to 1 GB) is downloaded once: for each --torch, and if a wheel claims one series or two.

    Examples:
        buildfarm verify dist/*.whl
        buildfarm verify NAME==VERSION --torch 2.11 --cuda 13.0
        buildfarm verify WHEEL --max-size 300MB
        buildfarm verify WHEEL --gpu B200 --gpu "RTX 4090" --driver 550
    """
    verdicts, unreadable = run_verify(options, open_store(options.store))
    print_result(verify_text(verdicts), verify_data(verdicts, unreadable), as_json=options.as_json)
    for error in unreadable.values():
        print_error(error)
    if unreadable:
        return Exit.USAGE
    return Exit.FAILED if any(one.failed for one in verdicts) else Exit.OK


def run_verify(options: VerifyOptions, store: Store) -> tuple[list[WheelVerdict], Unreadable]:
    """Judge each wheel; return the verdicts, and the files that are no readable wheels. Raises BuildfarmError."""
    compat = Compat.load()
    selected([], options.select, compat)  # raises UsageError for a wrong selection
    pythons = [compat.resolve_python(text) for text in options.select.python]
    gpus = tuple(Gpu(text, compat.gpu_named(text)) for text in options.gpu or ())
    check_driver(options.driver)
    most = 0
    if options.max_size:
        from builder.matrix.fields import parse_size  # noqa: PLC0415 - it needs the models of matrix.yaml

        most = parse_size(options.max_size, "--max-size")
    pythons = pythons or [Python(*sys.version_info[:2])]
    judge = Judge(shelf_of(store), options.select, gpus, options.driver, most)
    verdicts: list[WheelVerdict] = []
    unreadable: dict[ForeignWheel, UsageError] = {}
    for one in foreign_wheels(options.wheels, store.root / "sources", options.index, pythons):
        try:
            facts = read_facts(one.path)
            _read_symbols(Linker(facts, judge.shelf, judge.select), store)
            with open_wheel(one.path) as wheel:
                verdicts.append(judge.judge(wheel, facts, one.origin))
        except UsageError as error:
            if error.code not in _UNREADABLE:
                raise
            unreadable[one] = error
    return verdicts, unreadable


def _read_symbols(linker: Linker, store: Store) -> None:
    """Read the symbols that the wheel of `linker` needs. An error is raised only for what the user asked for."""
    for release in linker.unread:
        try:
            linker.shelf.add(release, inventory_of_index(release, store))
        except BuildfarmError as error:
            if linker.select.torch:
                raise
            print_warning(f"the symbols of torch {release.torch} could not be read: {error.sentence}")


def verify_text(verdicts: Sequence[WheelVerdict]) -> str:
    """For each wheel its name and size, a line for each check that passed, and last what failed."""
    lines: list[str] = []
    for verdict in verdicts:
        facts = verdict.facts
        lines += [""] if lines else []
        lines.append(f"{escape(facts.filename)}  {size_text(facts.size)}: {coloured_counts(counts(verdict.proofs))}")
        for proof in verdict.proofs:
            if proof.verdict is Verdict.PASSED:
                reason = f"{proof.cell}: {proof.reason}" if proof.cell else proof.reason
                lines += map(marked, line(Verdict.PASSED, proof.check, reason, output_width(), most=4))
            if sizes := proof.evidence.get("sizes"):
                shown = ", ".join(f"{code} {size_text(size)}" for code, size in sizes.items())
                lines += map(escape, line("", "", shown, output_width(), most=4))
        lines += cause_lines(causes(verdict.proofs, name_cells=True))
    return to_text(*lines)


def verify_data(verdicts: Sequence[WheelVerdict], unreadable: Unreadable) -> list[dict[str, Any]]:
    """Everything about each wheel, and the error of each file that is no readable wheel."""
    data: list[dict[str, Any]] = [
        {
            "wheel": one.facts.filename,
            "sha256": one.facts.sha256,
            "origin": one.origin,
            "failed": one.failed,
            "proofs": one.proofs,
        }
        for one in verdicts
    ]
    return data + [
        {"wheel": one.path.name, "origin": one.origin, "failed": True, "proofs": [], "error": error}
        for one, error in unreadable.items()
    ]
