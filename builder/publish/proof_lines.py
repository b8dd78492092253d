"""What the proofs of wheels found, grouped by cause; the counts of their verdicts; refusals as errors."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from builder.errors import BuildError, BuildfarmError
from builder.gate.amounts import size_text
from builder.gate.outcome import FAILED, NOT_RUN, REMARK, Outcome, count_text
from builder.gate.report import Causes, PlacedOutcome, causes_of, line
from builder.proof import Check, Proof, Verdict
from builder.publish.op_evidence import proven_on
from builder.result import BuildResult

#: Checks that many ops do not promise to pass.
_OPTIONAL = (Check.OPCHECK, Check.FAKE, Check.DEVICES, Check.EXPORT, Check.COMPILE)
#: What the evidence of an outcome may have besides op, case and verdict.
_TEXTS = {"reason", "remark", "accepted"}


def causes(proofs: Iterable[Proof], *, name_cells: bool = False) -> Causes:
    """Why checks of one wheel failed, did not run, are accepted or are remarked on."""
    return causes_of(findings(proofs), name_cells=name_cells)


def findings(proofs: Iterable[Proof], wheel: str = "") -> Iterator[PlacedOutcome]:
    """What proofs found: the outcomes of the op gate, and for other checks the verdict."""
    for proof in proofs:
        cell = str(proof.cell) if proof.cell else ""
        for one in _outcomes(proof):
            yield PlacedOutcome(one, cell, wheel)
        for text in remarks(proof):
            yield PlacedOutcome(Outcome(str(proof.check), "", "", NOT_RUN, text, remark=True), cell, wheel)


def _outcomes(proof: Proof) -> list[Outcome]:
    check, verdict = str(proof.check), str(proof.verdict)
    found = [
        replace(
            Outcome(check, one["op"], one["case"], one["verdict"]), **{key: one[key] for key in _TEXTS & one.keys()}
        )
        for one in proof.evidence.get("outcomes", ())
    ]
    if not any(one.verdict == verdict for one in found):
        found = [Outcome(check, "", "", verdict, proof.reason, remark=proof.remark, accepted=proof.accepted)]
    return found


def failed_lines(proofs: Sequence[Proof]) -> list[str]:
    """A sentence for each cause of failed checks; one crash may fail many checks."""
    return causes(proofs).sentences(FAILED)


def remarks(proof: Proof) -> list[str]:
    """What a proof says besides its verdict."""
    return list(proof.evidence.get("remarks", ()))


def counts(proofs: Sequence[Proof]) -> str:
    """How many checks have which verdict, such as `20 passed, 1 failed, 5 not run, 1 accepted, 1 remark`."""
    words = [REMARK if proof.remark else str(proof.verdict) for proof in proofs]
    return count_text([*words, *(REMARK for proof in proofs for _ in remarks(proof))])


def gpu_lines(proofs: Sequence[Proof], width: int) -> list[str]:
    """The GPU models on which the values of every op were checked, and in which cells."""
    models = proven_on(proofs)
    cells = {str(proof.cell) for proof in proofs if proof.cell}
    lines = []
    for proven in dict.fromkeys(models.values()):
        where = [cell for cell, found in models.items() if found == proven]
        place = "" if len(where) == len(cells) else f" in {where[0] if len(where) == 1 else f'{len(where)} cells'}"
        lines += line(Verdict.PASSED, "GPU", ", ".join(proven) + place, width)
    return lines


def problem_of(result: BuildResult) -> BuildfarmError | None:
    """The error that stopped a build, or why its wheel was refused; None for a wheel without a failed check."""
    if result.error or not result.refused:
        return result.error
    where = []
    if result.stored:
        where.append(f"the refused wheel is {result.stored.wheel}")
    if result.mistake_in_cases:
        where = ["correct cases.py and run the same command again; no wheel is compiled again"]
    if result.log:
        where.append(f"the full output is in {result.log}")
    return BuildError(
        "; ".join(failed_lines(result.proofs)),
        stage="verify",
        log=result.log,
        where=str(result.build),
        hints=[*hints_of(result.proofs), *where],
    )


def hints_of(proofs: Iterable[Proof]) -> list[str]:
    """What to do about failed checks."""
    failed = [proof for proof in proofs if proof.verdict is Verdict.FAILED]
    hints = [hint for proof in failed for hint in proof.evidence.get("hints", ())]
    hints += [
        f'if the op does not support `{proof.check}`, write `not_claimed={{"{proof.check}": REASON}}` in its Case'
        for proof in failed
        if proof.check in _OPTIONAL
    ]
    return list(dict.fromkeys(hints))


def causes_of_builds(results: Iterable[BuildResult]) -> Causes:
    """Why checks of the wheels of a run failed or did not run, and what is remarked on."""
    found: list[PlacedOutcome] = []
    for result in results:
        found += findings(result.proofs, str(result.build))
        if text := _beyond_plan(result):
            remark = Outcome(str(Check.DEVICE_CODE), "", "", NOT_RUN, text, remark=True)
            found.append(PlacedOutcome(remark, "", str(result.build)))
    return causes_of(found)


def _beyond_plan(result: BuildResult) -> str:
    """The GPU code, what it costs in size, and the cure; empty for a wheel with the plan's code only."""
    proof = next((proof for proof in result.proofs if proof.check is Check.DEVICE_CODE), None)
    sizes: Mapping[str, int] = proof.evidence.get("beyond", {}) if proof else {}
    if not sizes:
        return ""
    return (
        f"the wheel also has {', '.join(sizes)}; the plan asks for {', '.join(map(str, result.build.archs))}."
        f" This extra code costs {size_text(sum(sizes.values()))}. `override_architectures: true` in the recipe leaves"
        " it out, if it is not in a library that the extension links statically"
    )
