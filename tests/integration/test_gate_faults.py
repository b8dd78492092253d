"""The gate catches what it must, names it, lives on after it, and has no quarrel with what is sound."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest

from builder.gate.outcome import CHECKS, FAILED, NOT_RUN, PASSED, Spec
from tests.integration.gate_env import GateRun, cases, pack_gate, run_gate

pytestmark = [pytest.mark.network, pytest.mark.slow]

OLD, NEW = "2.11.0", "2.15.0"
#: Checks that call the kernel, so an op that always crashes is red in each.
EXECUTES = ("values", "gradients", "layouts", "edges", "repeat", "memory", "opcheck", "fake", "export", "compile")
#: Checks that ask the fake kernel.
TRACES = ("fake", "devices", "opcheck", "export", "compile")
GPU = tuple(check for check in CHECKS if check.startswith("gpu-"))


@dataclass(frozen=True)
class Fault:
    """A planted fault.

    Attributes:
        op: without the namespace; or the dotted path of a function.
        check: the one that must be red.
        words: patterns that its sentence must hold.
        also: checks that may be red too, because the same fault meets them.
        case: the case it must be red in.

    """

    op: str
    check: str
    words: tuple[str, ...]
    also: tuple[str, ...] = ()
    case: str = "plain"

    @property
    def name(self) -> str:
        """The op as the gate names it."""
        return self.op if "." in self.op else f"planted_faulty::{self.op}"


FAULTS = [
    # what the dispatcher and the compiler are told
    Fault("no_cuda", "dispatch", ("CUDA",), case=""),
    Fault("no_fake", "fake", ("fake",), TRACES),
    Fault("fake_shape", "fake", ("shape", r"\(4, 7\)", r"\(4, 6\)"), ("opcheck", "export", "compile")),
    Fault("fake_strides", "fake", ("stride", r"\(6, 1\)", r"\(1, 4\)"), ("opcheck", "compile")),
    Fault("fake_dtype", "fake", ("float16", "float32"), ("opcheck", "export", "compile")),
    Fault("fake_device", "fake", ("cpu", "cuda"), ("devices",)),
    Fault("fake_mixed", "devices", ("cpu", "cuda", "fake")),
    Fault("fake_frozen", "export", ("fixes", "more rows"), ("opcheck", "compile")),
    Fault("planted_faulty.branching", "compile", ("fullgraph|graph|data-dependent",), TRACES),
    # gradients and strides
    Fault("gradient_percent", "gradients", ("gradient", "argument 0"), ("layouts",)),
    Fault("misread_gradient", "layouts", ("gradient", "contiguous|expand|stride"), ("opcheck",)),
    Fault("misread_backward", "layouts", ("contiguous|stride",)),
    Fault("misread_input", "layouts", ("contiguous|stride",)),
    # numbers
    Fault("float64_value", "values", ("float64", "24 of 24")),
    Fault("half_missing", "values", ("float16", "no kernel")),
    Fault("nan_wrong", "values", ("nan",)),
    Fault("wrong_reference", "values", ("reference", "no_such_method")),
    Fault("flickering", "repeat", ("other bits",)),
    Fault("warming", "repeat", ("other bits",)),
    # memory
    Fault("past_end", "memory", ("past|outside|end",)),
    Fault("input_write", "values", ("input|argument", "changes|writes|modif"), EXECUTES),
    Fault("unfinished", "memory", ("uninitiali[sz]ed|never written",), EXECUTES),
    Fault("hungry", "values", ("100.0 GiB", "1.0 GiB")),
    Fault("greedy", "values", ("3.0 GiB", "1.0 GiB")),
    # ends
    Fault("endless", "edges", ("does not end", r"\d s"), case="empty"),
    Fault("empty_crash", "edges", ("SIGSEGV",), case="empty"),
    Fault("aborting", "values", ("SIGABRT",), EXECUTES),
    Fault("segfault", "values", ("SIGSEGV",)),
    Fault("exiting", "values", ("exit",), ("memory",)),
    Fault("quitting", "values", ("SystemExit|exit",), ("memory",)),
    Fault("forking", "values", ("fork", "second process")),
    Fault("chatty", "values", ("prints more than",)),
    # cases
    Fault("inputs_raise", "values", ("inputs", "planted: no such input", "cases.py")),
    Fault("uncased", "ops", ("wrote a case", "cases.py"), case=""),
    Fault("planted_faulty._bound.forgotten", "ops", ("wrote a case", "cases.py"), case=""),
    Fault("planted_faulty.uncovered", "ops", ("wrote a case", "cases.py"), case=""),
]
#: What looks odd and is not a fault; `thread_left` and `child_left` must not be there when the gate has ended.
FINE = ["nan_right", "thread_left", "child_left", "descriptors_closed"]

#: Why a check may not be run of a planted op without a GPU.
HONEST = (
    'not what this op is for|function in C|no case has edge="empty"|no dispatcher op|asks for a gradient'
    "|a Python callable: opcheck|no two devices to mix|it fails with all on CUDA too, see fake"
    "|has no reference, and does not ask for gradcheck"
)

FAULTY = Spec(
    "planted_faulty",
    ["planted_faulty"],
    companions=["planted_companion"],
    libraries={"libkernels": ["CPU", "CUDA"]},
    jobs=2,
    seconds=20,  # for one op that does not end; the others need that much where other tests have the processors too
    memory=1 << 30,
)
SOUND = Spec(
    "planted_sound",
    ["planted_sound"],
    companions=["planted_faulty"],
    libraries={"libkernels": ["CPU", "CUDA"]},
    jobs=2,
)

Gate = Callable[..., GateRun]


@pytest.fixture(scope="module")
def gate(gate_python: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Gate:
    """One run of the gate, each made once: the torch, the spec, the cases."""

    @cache
    def once(torch: str, name: str, text: str | None, checks: tuple[str, ...]) -> GateRun:
        spec = {"faulty": FAULTY, "sound": SOUND}.get(name) or Spec(f"planted_{name}", [f"planted_{name}"])
        folder = tmp_path_factory.mktemp(f"gate-{name}")
        path: Path | None = cases(name) if text is None else None
        if text:
            path = folder / "given.py"
            path.write_text(text)
        asked = replace(spec, checks=list(checks))
        return run_gate(pack_gate(gate_python(torch), folder, asked, path))

    def run(torch: str, name: str, *checks: str, cases: str | None = None) -> GateRun:
        return once(torch, name, cases, checks)

    return run


@pytest.fixture(scope="module")
def faulty(gate: Gate) -> GateRun:
    """The gate over all faults at once."""
    return gate(OLD, "faulty")


def found(run: GateRun, fault: Fault) -> str:
    """The sentence in which the fault is told."""
    failed = [o for o in run.of(fault.name, fault.check) if o.verdict == FAILED and o.case == fault.case]
    assert failed, [(o.check, o.case, o.verdict, o.reason) for o in run.of(fault.name)]
    return failed[0].reason


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.op)
def test_a_fault_is_caught_and_named(faulty: GateRun, fault: Fault) -> None:
    said = found(faulty, fault)
    for word in fault.words:
        assert re.search(word, said, re.IGNORECASE), said
    assert len(said) < 600, said
    assert "Traceback" not in said


def test_nothing_else_is_red(faulty: GateRun) -> None:
    """Every op was tried to its end, whatever the others did, and is red for its own fault alone."""
    allowed = {(fault.name, check) for fault in FAULTS for check in (fault.check, *fault.also)}
    allowed.add(("", "import-order"))
    red = {(outcome.op, outcome.check) for outcome in faulty.failures}
    assert red <= allowed, "\n".join(
        f"{o.op} {o.check}: {o.reason}" for o in faulty.failures if (o.op, o.check) not in allowed
    )
    for name in FINE:
        verdicts = {outcome.verdict for outcome in faulty.of(f"planted_faulty::{name}", "values")}
        assert verdicts == {PASSED}, faulty.of(f"planted_faulty::{name}")
    # "Not run" is no hiding place: only what the cases leave out, what needs a GPU, and what met the import order.
    for outcome in faulty.answer.outcomes:
        if outcome.verdict == NOT_RUN and outcome.check not in GPU:
            assert re.search(HONEST, outcome.reason), outcome


def test_the_order_that_crashes_is_named(faulty: GateRun) -> None:
    """The companion exports a symbol of the same name as the extension: a crash where it was first."""
    failed = [o for o in faulty.answer.outcomes if o.check == "import-order" and o.verdict == FAILED]
    assert failed
    for outcome in failed:
        assert "SIGSEGV" in outcome.reason
        assert re.search(r"planted_companion.*planted_faulty", outcome.reason), outcome.reason
        assert re.search(r"planted_start of libkernels\.so, at <module> \(__init__\.py:\d+\)", outcome.reason), (
            outcome.reason
        )
        assert "Native stack" in str(outcome.evidence)
    # An order that works is told too.
    assert any(re.search(r"planted_faulty.*planted_companion", o.reason) for o in failed), failed
    passed = [o for o in faulty.answer.outcomes if o.check == "import-order" and o.verdict == PASSED]
    assert all("planted_companion, planted_faulty" not in o.case for o in passed)


def test_a_crash_shows_where(faulty: GateRun) -> None:
    for op in ("segfault", "aborting"):
        (outcome,) = (o for o in faulty.of(f"planted_faulty::{op}", "values") if o.verdict == FAILED)
        assert "in native" in str(outcome.evidence), outcome.evidence  # the Python function that called it


def test_the_gate_says_so_and_leaves_nothing(faulty: GateRun) -> None:
    assert faulty.ran.code == 1
    assert faulty.cpu_seconds < 200
    assert faulty.processes == ()
    assert faulty.files == ()
    # 100 MB were printed: neither the answer nor the terminal repeats them.
    assert faulty.answer_bytes < 4 << 20
    assert len(faulty.ran.out) < 200_000
    for fault in FAULTS:
        assert fault.name in faulty.ran.out, fault.name


@pytest.mark.parametrize("op", ["no_fake", "fake_strides", "fake_dtype", "fake_mixed", "fake_device", "misread_input"])
def test_the_newest_torch_catches_them_too(gate: Gate, op: str) -> None:
    """Its messages differ, and so does what it checks by itself."""
    run = gate(NEW, "faulty", "dispatch", "fake", "devices", "layouts")
    assert run.ran.code == 1
    (fault,) = (fault for fault in FAULTS if fault.op == op)
    said = found(run, fault)
    for word in fault.words:
        assert re.search(word, said, re.IGNORECASE), said


@pytest.mark.parametrize("torch", [OLD, NEW])
def test_a_sound_extension_is_all_green(gate: Gate, torch: str) -> None:
    run = gate(torch, "sound")
    assert not run.failures, run.told()
    assert run.ran.code == 0, run.ran.all
    assert run.processes == ()
    assert run.files == ()
    assert run.cpu_seconds < 120  # a minute of two cores
    passed = {(o.op, o.check) for o in run.answer.outcomes if o.verdict == PASSED}
    whole = {check for _, check in passed if (_, check) == ("", check)}
    for check in CHECKS:
        if check not in GPU:
            assert ("planted_sound::multiply", check) in passed or check in whole, check
    # One implementation for every device says nothing about CUDA, and running it elsewhere is no proof.
    assert [o.verdict for o in run.of("planted_sound::squared", "dispatch")] == [NOT_RUN]
    assert {o.verdict for o in run.answer.outcomes if o.check in GPU} == {NOT_RUN}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("from builder.gate import Case\n\nCASES = [Case(\n", ("cases.py", "SyntaxError|never closed", "line 3|:3")),
        ("CASES = 7\n", ("cases.py", "CASES")),
        ("import os\n\nos.abort()\n", ("cases.py", "SIGABRT")),
    ],
    ids=["syntax", "type", "abort"],
)
def test_cases_that_cannot_be_read(gate: Gate, text: str, words: tuple[str, ...]) -> None:
    run = gate(OLD, "sound", "ops", "values", cases=text)
    assert run.ran.code == 1, run.ran.all
    said = run.told()
    assert any(all(re.search(word, o.reason) for word in words) for o in run.failures), said
    assert not [o for o in run.answer.outcomes if o.verdict == PASSED], "nothing was tried, so nothing passed"


def test_no_cases_at_all(gate: Gate) -> None:
    """Each op is named."""
    run = gate(OLD, "sound", "ops", cases="")
    assert run.ran.code == 1
    named = {o.op for o in run.failures if o.check == "ops"}
    assert {"planted_sound::multiply", "planted_sound::squared", "planted_sound._bound.total"} <= named, run.told()


def test_an_extension_that_cannot_be_imported(gate: Gate) -> None:
    run = gate(OLD, "broken", cases="CASES = []\n")
    assert run.ran.code == 1, run.ran.all
    assert any(re.search("import.*planted_broken", o.reason) and "SIGSEGV" in o.reason for o in run.failures), (
        run.told()
    )
    assert not [o for o in run.answer.outcomes if o.verdict == PASSED], "nothing was tried, so nothing passed"
    assert run.processes == ()


def test_a_gate_that_is_killed_leaves_nothing(gate_python: Callable[[str], Path], tmp_path: Path) -> None:
    """SIGKILL to the gate while an op loops for ever, after it started a program in a session of its own."""
    spec = replace(FAULTY, checks=["edges"], seconds=60)
    packed = pack_gate(gate_python(OLD), tmp_path, spec, cases("faulty"))
    gate = subprocess.Popen(
        packed.words, env={**os.environ, **packed.env}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 60
        while not any("sleep 3600" in line for line in packed.processes(patience=0).values()):
            assert gate.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        gate.kill()
        gate.wait()
        assert packed.processes(patience=5) == {}
    finally:
        gate.kill()
        gate.wait()
        packed.kill()
