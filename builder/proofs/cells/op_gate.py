"""Run the op gate in a cell's environment, and turn its answer into proofs."""

import hmac
import json
import os
import secrets
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from builder.confinement import confined
from builder.formats import CELL_FORMAT, OPS_FORMAT, sha256_of
from builder.gate.amounts import counted, grouped, join_names, size_text
from builder.gate.check_table import CHECKS
from builder.gate.outcome import (
    ACCEPTED,
    FAILED,
    IMPORT_SECONDS,
    KEY_FILE,
    NOT_RUN,
    NOTHING_FAILED,
    SOMETHING_FAILED,
    Answer,
    Outcome,
    Spec,
    accept,
    finding,
    signature,
    verdict_of,
)
from builder.gate.pack import REFERENCES, pack
from builder.gate.processes.servers import heap_check_environment, plain_environment
from builder.matrix.axes import Cell
from builder.matrix.config import Recipe
from builder.process import WHEEL_LIMITS, kill_orphans, run, wheel_variables
from builder.proof import Check, Proof, Verdict, now
from builder.untrusted import MAX_OWN_JSON, JsonError, parse_json

T = TypeVar("T")


#: The time limit of the complete gate is that of so many cases.
_CASES = 240

#: The largest answer that is read, in bytes.
ANSWER_BYTES = 32 << 20

#: The gate's checks, in the order in which they are printed.
GATE_CHECKS = tuple(Check(name) for name in CHECKS)

#: The checks that need the environment of a cell.
CELL_CHECKS = (Check.LINKAGE, Check.IMPORT, *GATE_CHECKS)


def spec_of(recipe: Recipe, jobs: int) -> Spec:
    """What the gate has to prove about an extension; `jobs` is the number of processes, 0 for the default."""
    return Spec(
        name=recipe.name,
        imports=list(recipe.imports),
        needs_first=list(recipe.needs_first),
        accepts=[asdict(entry) for entry in recipe.accepts],
        companions=list(recipe.companions),
        libraries={stem: list(keys) for stem, keys in recipe.libraries.items()},
        has_cases=recipe.cases is not None,
        jobs=jobs,
        seconds=float(recipe.seconds_per_case),
    )


def gate_basis(recipe: Recipe) -> list[str | int]:
    """What the gate's verdicts depend on besides the wheel: formats, settings of the recipe, contents of its cases.

    `accepts` is not among them: `apply_accepts` applies it without a run of the gate.
    """
    files = []
    if recipe.cases:  # every file that is copied with the cases counts, data included
        found = sorted((recipe.folder / REFERENCES).rglob("*"))
        files = [recipe.cases, *(path for path in found if path.is_file() and "__pycache__" not in path.parts)]
    spec = replace(spec_of(recipe, 0), accepts=[])
    return [CELL_FORMAT, OPS_FORMAT, json.dumps(asdict(spec)), *(sha256_of(file) for file in files)]


def run_gate(interpreter: Path, recipe: Recipe, folder: Path, *, jobs: int, log: Path, owner: str) -> Answer | str:
    """Run the gate with this Python; return its answer, or a sentence on why there is none, which is a failure.

    `folder` must not exist; the gate is copied there, works there and writes its answer there. Its table goes to the
    log. No other run may use `owner` at the same time: an interrupted run kills every process that carries it.
    """
    pack(folder, spec_of(recipe, jobs), recipe.cases)
    key = write_key(folder)
    status, written = run_packed(interpreter, folder, log=log, owner=owner, seconds=gate_seconds(recipe))
    return read_signed(written, key, status, log)


def read_answer(written: bytes, parse: Callable[[Any], T], status: int, log: Path) -> T | str:
    """Return the parsed answer of the gate, or a sentence on why there is none."""
    if len(written) > ANSWER_BYTES:
        return f"the op gate wrote results of more than {size_text(ANSWER_BYTES)}; the full output is in {log}"
    try:
        return parse_json(written, parse, limit=MAX_OWN_JSON)
    except JsonError:
        if status == -signal.SIGKILL:
            return (
                "the op gate was ended by SIGKILL and wrote no results: code of the wheel stopped or killed it, or the"
                f" memory was full; the full output is in {log}"
            )
        return f"the op gate exited with status {status} and wrote no results; the full output is in {log}"


def write_key(folder: Path) -> bytes:
    """Write a new key into the folder of a packed gate, which deletes the file at once; return the key."""
    key = secrets.token_bytes(32)
    descriptor = os.open(folder / KEY_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(key)
    return key


def read_signed(written: bytes, key: bytes, status: int, log: Path) -> Answer | str:
    """Return the answer of the gate, or a sentence on why there is none.

    An answer without the key's signature, or with an exit status that contradicts it, was not written by the gate.
    """
    forged = f"something other than the op gate wrote the results of the op gate; the full output is in {log}"

    def parse(data: Any) -> Answer | str:  # noqa: ANN401
        if not hmac.compare_digest(str(data["signature"]), signature(key, data)):
            return forged
        answer = Answer.from_json(data)
        failed = any(one.verdict == FAILED for one in answer.outcomes)
        return answer if status == (SOMETHING_FAILED if failed else NOTHING_FAILED) else forged

    return read_answer(written, parse, status, log)


def gate_arguments(folder: str, *, draft: bool = False) -> list[str]:
    """Return the arguments of Python that run the packed gate in a folder.

    Without -S, Python would execute code of installed wheels when it starts: `.pth` files and `sitecustomize`.
    """
    own, more = ((), ("--draft",)) if draft else (("-S",), ())
    return ["-I", *own, "-X", "faulthandler", folder, "--answer", f"{folder}/answer.json", *more]


def gate_seconds(recipe: Recipe) -> float:
    """Return the time limit of the complete gate, in seconds: it ends a gate that an op has stopped."""
    return 2 * IMPORT_SECONDS + _CASES * recipe.seconds_per_case


def run_packed(
    interpreter: Path, folder: Path, *, log: Path, owner: str, seconds: float = 0, draft: bool = False
) -> tuple[int, bytes]:
    """Run the packed gate, which can change files in `folder` only; return its exit status and what it wrote."""
    answer, scratch = folder / "answer.json", folder / "tmp"
    scratch.mkdir()
    argv = [str(interpreter), *gate_arguments(str(folder), draft=draft)]
    try:
        # A killed gate cannot clean up: its task directories are removed with the folder.
        variables: Mapping[str, str] = {**wheel_variables(), "HOME": str(scratch), "TMPDIR": str(scratch)}
        # A call that writes outside of its memory then ends its process, and a draft tries another one.
        checked = heap_check_environment(variables) if draft else variables
        variables = plain_environment(variables) if isinstance(checked, str) else checked
        limits = replace(WHEEL_LIMITS, seconds=seconds)
        status = run(confined(argv, [folder]), log=log, owner=owner, env=variables, limits=limits)
    except BaseException:  # Ctrl-C: the gate's processes have their own sessions and would continue
        kill_orphans(owner)
        raise
    if not answer.is_file():
        return status, b""
    with answer.open("rb") as file:
        return status, file.read(ANSWER_BYTES + 1)  # by the last byte, `read_answer` knows that there is more


@dataclass(frozen=True)
class CellProofs:
    """Makes the proofs of one wheel in one cell."""

    #: The sha256 of the wheel.
    wheel: str
    cell: Cell | None

    def proof(self, check: Check, verdict: Verdict, reason: str, evidence: dict[str, Any] | None = None) -> Proof:
        """The proof of one check, made now."""
        return Proof(self.wheel, self.cell, check, verdict, reason, evidence or {}, now())

    def not_run(self, reason: str, checks: Sequence[Check] = GATE_CHECKS, *, settled: bool = False) -> list[Proof]:
        """Checks that could not run; `settled` when the next run would have the same result."""
        return [self.proof(check, Verdict.NOT_RUN, reason, {"settled": True} if settled else {}) for check in checks]

    def of_gate(self, answer: Answer | str) -> list[Proof]:
        """One proof for each check of the gate: failed if any case failed, passed only if every case passed.

        A check that was not run for one op is not run, however many other ops passed.

        Without an answer, code of the wheel may have ended the gate: all checks failed, and the next run tries again.
        GPU checks are "not run" then, because only the gate knows whether there is a GPU.
        """
        if isinstance(answer, Answer):
            return [self._of_check(answer, check) for check in GATE_CHECKS]
        verdicts = {check: Verdict.NOT_RUN if check.on_gpu else Verdict.FAILED for check in GATE_CHECKS}
        return [self.proof(check, verdict, answer, {"limit": "time"}) for check, verdict in verdicts.items()]

    def _of_check(self, answer: Answer, check: Check) -> Proof:
        outcomes = [outcome for outcome in answer.outcomes if outcome.check == check]
        # settled: the next run would have the same result: the cause is the recipe or this machine
        evidence = {"where": answer.where, "settled": True, **outcome_evidence(outcomes)}
        if any(outcome.evidence.get("limit") == "time" for outcome in outcomes if outcome.verdict == FAILED):
            hint = "the next run tries again; if the machine is slow, raise `seconds_per_case` in the recipe"
            evidence["hints"] = [hint]
        return self.proof(check, *summary(outcomes), evidence)


def summary(outcomes: Sequence[Outcome]) -> tuple[Verdict, str]:
    """The verdict and the reason of a check, from its outcomes. A failed one decides, then an accepted one."""
    verdict = Verdict(verdict_of(outcomes))
    deciding = [one for one in outcomes if one.verdict == verdict]
    if verdict in (Verdict.FAILED, Verdict.ACCEPTED):
        return verdict, "; ".join(_sentences(deciding))
    if verdict is Verdict.PASSED:
        count = len({outcome.op for outcome in outcomes if outcome.op})
        if len(outcomes) == 1:
            return verdict, outcomes[0].reason
        if not count:  # the check "loaded", whose cases are libraries
            return verdict, join_names([outcome.case for outcome in outcomes])
        of_cases = any(outcome.case for outcome in outcomes)
        return verdict, (f"{len(outcomes)} cases of " if of_cases else "") + counted(count, "op")
    if not outcomes:
        return verdict, "this check applies to no op and no case"
    if remarks := [one for one in deciding if one.remark]:
        return verdict, "; ".join(_sentences(remarks))
    reasons = grouped((outcome.reason, outcome.op) for outcome in deciding)  # each once, with its ops
    if len(reasons) == 1 and len(deciding) == len(outcomes):
        return verdict, deciding[0].reason
    parts = [f"{join_names(sorted({*ops} - {''}))}: {why}" if any(ops) else why for why, ops in reasons.items()]
    return verdict, f"{len(outcomes) - len(deciding)} of {len(outcomes)} passed; {'; '.join(parts)}"


def outcome_evidence(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The outcomes as evidence of a proof, which `_outcomes` reads."""
    evidence: dict[str, Any] = {"outcomes": [_evidence(outcome) for outcome in outcomes]}
    if reasons := dict.fromkeys(one.accepted for one in outcomes if one.accepted):
        evidence["accepted"] = "; ".join(reasons)
    if any(one.remark and one.verdict == NOT_RUN for one in outcomes):
        evidence["remark"] = True
    return evidence


def _sentences(failed: Sequence[Outcome]) -> list[str]:
    """Each cause once for each op, with the cases in which it showed; at most three."""
    sentences = []
    for (op, _), group in grouped(((outcome.op, outcome.cause), outcome) for outcome in failed).items():
        cases = join_names(list(dict.fromkeys(outcome.case for outcome in group if outcome.case)))
        named = f"{op} ({cases})" if op and cases else op or (cases if group[0].remark else "")
        sentences.append(f"{named}: {group[0].reason}" if named else group[0].reason)
    return sentences[:3] + ([f"and {len(sentences) - 3} more"] if len(sentences) > 3 else [])


def _evidence(outcome: Outcome) -> dict[str, object]:
    evidence: dict[str, object] = {"op": outcome.op, "case": outcome.case, "verdict": outcome.verdict}
    if outcome.reason:
        evidence["reason"] = outcome.reason
    if outcome.verdict in (FAILED, ACCEPTED) or outcome.check.startswith("gpu-") or "gradient" in outcome.evidence:
        evidence["evidence"] = outcome.evidence
    if outcome.remark:
        evidence["remark"] = True
    if outcome.accepted:
        evidence["accepted"] = outcome.accepted
    return evidence


def apply_accepts(proofs: Sequence[Proof], recipe: Recipe) -> list[Proof]:
    """Return the proofs with each finding that the recipe accepts marked, and no other."""
    return [_with_accepts(proof, recipe) for proof in proofs]


def _with_accepts(proof: Proof, recipe: Recipe) -> Proof:
    outcomes = accept(_outcomes(proof), recipe.accepts, str(proof.cell or ""))
    if proof.verdict is not Verdict.ACCEPTED and not any(one.accepted for one in outcomes):
        return proof
    evidence = {key: value for key, value in proof.evidence.items() if key not in ("accepted", "remark")}
    if "outcomes" in proof.evidence:
        verdict, reason = summary(outcomes)
        return replace(proof, verdict=verdict, reason=reason, evidence=evidence | outcome_evidence(outcomes))
    [one] = outcomes
    more = {"accepted": one.accepted} if one.accepted else {}
    return replace(proof, verdict=Verdict(one.verdict), evidence=evidence | more)


def _outcomes(proof: Proof) -> list[Outcome]:
    """The outcomes of a check of the gate; for any other check a single one. None of them is accepted."""
    check = str(proof.check)
    if "outcomes" not in proof.evidence:
        return [finding(Outcome(check, "", "", str(proof.verdict), proof.reason))]
    return [finding(Outcome(check=check, **one)) for one in proof.evidence["outcomes"]]
