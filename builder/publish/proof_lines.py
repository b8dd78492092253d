"""Failed checks and checks that did not run, as lines for a person: one line for each reason; refusals as errors."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence

from builder.errors import BuildError, BuildfarmError
from builder.gate.amounts import size_text
from builder.gate.outcome import REMARK, Outcome, count_text
from builder.matrix.axes import Arch
from builder.proof import Check, Proof, Verdict
from builder.publish.gpu_models import KEY, models_of, proven_on
from builder.result import BuildResult

#: Checks that many ops do not promise to pass.
_OPTIONAL = (Check.OPCHECK, Check.FAKE, Check.DEVICES, Check.EXPORT, Check.COMPILE)
#: A name of GPU code, such as sm_90a or compute_90.
_CODE = re.compile(r"(sm|compute)_(\d+)(\d[af]?)")


def failed_lines(proofs: Sequence[Proof]) -> list[str]:
    """Each failed check with its reason and the cells that it failed in."""
    return _lines([proof for proof in proofs if proof.verdict is Verdict.FAILED])


def _lines(proofs: Sequence[Proof]) -> list[str]:
    """A line for each finding; checks that failed for the same causes share one, such as every check of a crash."""
    groups: dict[Hashable, list[Proof]] = {}
    for proof in proofs:
        groups.setdefault(_causes(proof), []).append(proof)
    return [
        f"{', '.join(dict.fromkeys(str(proof.check) for proof in group))}{_in_cells(group)}: {group[0].reason}"
        for group in groups.values()
    ]


def _causes(proof: Proof) -> Hashable:
    """What proofs of one line have in common: ops and causes, or without outcomes the check and its reason."""
    outcomes = [
        Outcome(str(proof.check), one["op"], one["case"], one["verdict"], one.get("reason", ""))
        for one in proof.evidence.get("outcomes", ())
    ]
    causes = frozenset((one.op, one.cause) for one in outcomes if one.op and one.verdict == proof.verdict)
    return causes or (proof.check, proof.reason)


def remark_lines(proofs: Sequence[Proof]) -> list[str]:
    """Each gap of the tests that the author of the recipe can close, and what checks of the file remark on."""
    gaps = _lines([proof for proof in proofs if proof.remark])
    return gaps + list(dict.fromkeys(f"{proof.check}: {text}" for proof in proofs for text in remarks(proof)))


def remarks(proof: Proof) -> list[str]:
    """What a proof says besides its verdict."""
    return list(proof.evidence.get("remarks", ()))


def accepted_lines(proofs: Sequence[Proof]) -> list[str]:
    """Each finding that the recipe accepts, with the reason why."""
    accepted = [proof for proof in proofs if proof.verdict is Verdict.ACCEPTED]
    return [
        f"{line} (accepted: {why})"
        for why in dict.fromkeys(p.accepted for p in accepted)
        for line in _lines([p for p in accepted if p.accepted == why])
    ]


def counts(proofs: Sequence[Proof]) -> str:
    """How many checks have which verdict, such as `20 passed, 1 failed, 5 not run, 1 accepted, 1 remark`."""
    words = [REMARK if proof.remark else str(proof.verdict) for proof in proofs]
    return count_text([*words, *(REMARK for proof in proofs for _ in remarks(proof))])


def not_run_lines(proofs: Sequence[Proof]) -> list[str]:
    """Each reason why checks did not run, with the checks and the cells."""
    groups: dict[tuple[str, str], list[Proof]] = {}
    for proof in proofs:
        if KEY in proof.evidence:
            for model, on in models_of(proof).items():
                if not on.ran:
                    groups.setdefault((f"GPU {model}", on.reason), []).append(proof)
        elif proof.verdict is Verdict.NOT_RUN and not proof.remark:
            groups.setdefault(("", proof.reason), []).append(proof)
    lines = []
    for (model, reason), group in groups.items():
        checks = model or ", ".join(dict.fromkeys("GPU" if each.check.on_gpu else str(each.check) for each in group))
        lines.append(f"{checks}: not run{_in_cells(group)}: {reason}")
    return lines


def gpu_lines(proofs: Sequence[Proof]) -> list[str]:
    """The GPU models on which the values of every op were checked, a line for the cells with the same models."""
    cells: dict[tuple[str, ...], list[Proof]] = {}
    models = proven_on(proofs)
    for proof in proofs:
        if proof.check is Check.GPU_VALUES and (proven := models.get(str(proof.cell))):
            cells.setdefault(proven, []).append(proof)
    return [f"GPU: {', '.join(proven)}{_in_cells(group)}" for proven, group in cells.items()]


def problem_of(result: BuildResult) -> BuildfarmError | None:
    """The error that stopped a build, or why its wheel was refused; None for a wheel without a failed check."""
    if result.error or not result.refused:
        return result.error
    failed = [proof for proof in result.proofs if proof.verdict is Verdict.FAILED]
    hints = dict.fromkeys(hint for proof in failed for hint in proof.evidence.get("hints", ()))
    hints |= dict.fromkeys(
        f'if the op does not support `{proof.check}`, write `not_claimed={{"{proof.check}": REASON}}` in its Case'
        for proof in failed
        if proof.check in _OPTIONAL
    )
    where = []
    if result.stored:
        where.append(f"the refused wheel is {result.stored.wheel}")
    if result.mistake_in_cases:
        where = ["correct cases.py and run the same command again; no wheel is compiled again"]
    if result.log:
        where.append(f"the full output is in {result.log}")
    return BuildError(
        "; ".join(failed_lines(failed)), stage="verify", log=result.log, where=str(result.build), hints=[*hints, *where]
    )


def _in_cells(proofs: Sequence[Proof]) -> str:
    """` in CELL`, ` in 3 cells`, or empty for checks of the file."""
    cells = list(dict.fromkeys(str(proof.cell) for proof in proofs if proof.cell))
    return f" in {cells[0]}" if len(cells) == 1 else f" in {len(cells)} cells" if cells else ""


def beyond_plan_line(result: BuildResult) -> str:
    """The architectures, what they cost in size, and the cure; empty for a wheel with the plan's code only."""
    proof = next((proof for proof in result.proofs if proof.check is Check.DEVICE_CODE), None)
    sizes: Mapping[str, int] = proof.evidence.get("beyond", {}) if proof else {}
    if not sizes or not result.stored:
        return ""
    archs = _architectures(sizes)
    names = [*archs, *(f"PTX {_number(code)}" for code in sizes if code.startswith("compute_"))]
    asked = ", ".join(map(str, result.build.archs))
    remark = (
        f"{result.build}: the wheel also has code for {', '.join(names)}; the plan asks for {asked}. "
        f"This extra code costs {size_text(sum(sizes.values()))}"
    )
    if result.stored.record.record.settings.override_architectures:
        return f"{remark}. The build did not compile this code: look for libraries that the extension links statically"
    return f"{remark}. To leave this code out, set `override_architectures: true` in the recipe"


def _architectures(codes: Mapping[str, int]) -> list[str]:
    """The architectures with machine code, as recipes write them."""
    return [str(Arch.parse(_number(code))) for code in codes if code.startswith("sm_")]


def _number(code: str) -> str:
    return _CODE.sub(r"\2.\3", code)
