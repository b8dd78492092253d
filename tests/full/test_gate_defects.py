"""The gate finds each defect, names it and goes on; it passes correct extensions."""

import itertools
import os
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from builder.gate.check_table import CHECKS
from builder.gate.outcome import FAILED, NOT_RUN, PASSED, Spec
from tests.conftest import PATIENCE, wait_until
from tests.fixtures.gate_env import GateRun, cases, pack_gate, run_gate

pytestmark = [pytest.mark.network, pytest.mark.slow]

OLD, NEW = "2.11.0", "2.15.0"
#: Checks that call the kernel, so an op that always crashes fails in each.
EXECUTES = ("values", "gradients", "layouts", "edges", "repeat", "memory", "opcheck", "fake", "export", "compile")
#: Checks that call the fake kernel.
TRACES = ("fake", "devices", "opcheck", "export", "compile")
GPU = tuple(check for check in CHECKS if check.startswith("gpu-"))


@dataclass(frozen=True)
class Defect:
    """A defect of a sample op."""

    op: str  # without the namespace; or the dotted path of a function
    check: str  # the check that must fail
    patterns: tuple[str, ...]  # regular expressions that the reason must match
    also: tuple[str, ...] = ()  # checks that may fail too because of the same defect
    case: str = "plain"  # the case that must fail

    @property
    def name(self) -> str:
        """The op as the gate names it."""
        return self.op if "." in self.op else f"sample_defective::{self.op}"


DEFECTS = [
    # registration and fake kernels
    Defect("no_cuda", "dispatch", ("CUDA",), case=""),
    Defect("no_cpu", "values", ("no CPU kernel", r"TORCH_LIBRARY_IMPL\(sample_defective, CPU"), ("dispatch",)),
    Defect(
        "no_autograd", "gradients", ("no autograd is registered", 'register_autograd\\("sample_defective::no_autograd"')
    ),
    Defect("no_fake", "fake", ("fake",), TRACES),
    Defect("fake_shape", "fake", ("shape", r"\(4, 7\)", r"\(4, 6\)"), ("opcheck", "export", "compile")),
    Defect("fake_strides", "fake", ("stride", r"\(6, 1\)", r"\(1, 4\)"), ("opcheck", "compile")),
    Defect("fake_dtype", "fake", ("float16", "float32"), ("opcheck", "export", "compile")),
    Defect("fake_device", "fake", ("cpu", "cuda"), ("devices",)),
    Defect("fake_mixed", "devices", ("cpu", "cuda", "fake", "register_fake")),
    Defect("triples_", "values", ("result", "expected")),
    Defect("fake_frozen", "export", ("makes dimension 0 .* constant", "more rows"), ("opcheck", "compile")),
    Defect("sample_defective.branching", "compile", ("fullgraph|graph|data-dependent",), TRACES),
    # gradients and strides
    Defect("gradient_percent", "gradients", ("gradient", "argument 0"), ("layouts",)),
    Defect("misread_gradient", "layouts", ("gradient", "contiguous|expand|stride"), ("opcheck",)),
    Defect("misread_backward", "layouts", ("contiguous|stride",)),
    Defect("misread_input", "layouts", ("contiguous|stride",)),
    # numbers
    Defect("float64_value", "values", ("float64", "24 of 24")),
    Defect("half_missing", "values", ("float16", "no kernel")),
    Defect("nan_wrong", "values", ("nan",)),
    Defect("wrong_reference", "values", ("reference", "no_such_method")),
    Defect("flickering", "repeat", ("different bits",)),
    Defect("warming", "repeat", ("different bits",)),
    # memory
    Defect("past_end", "memory", ("past|outside|end",)),
    Defect("input_write", "values", ("input|argument", "changes|writes|modif"), EXECUTES),
    Defect("unfinished", "memory", ("uninitiali[sz]ed|never written",), EXECUTES),
    Defect("hungry", "values", ("100.0 GiB", "1.0 GiB")),
    Defect("greedy", "values", ("3.0 GiB", "1.0 GiB")),
    # crashes and processes
    Defect("endless", "edges", ("does not end", r"\d s"), case="empty"),
    Defect("empty_crash", "edges", ("SIGSEGV",), case="empty"),
    Defect("aborting", "values", ("SIGABRT",), EXECUTES),
    Defect("segfault", "values", ("SIGSEGV",)),
    Defect("exiting", "values", ("exit",), ("memory",)),
    Defect("quitting", "values", ("SystemExit|exit",), ("memory",)),
    Defect("forking", "values", ("fork", "second process")),
    Defect("chatty", "values", ("prints more than",)),
    # cases
    Defect("inputs_raise", "values", ("inputs", "sample: no such input", "cases.py")),
    Defect("uncased", "ops", ("no case covers", "cases.py"), case=""),
    Defect("sample_defective._bound.forgotten", "ops", ("no case covers", "cases.py"), case=""),
    Defect("sample_defective.uncovered", "ops", ("no case covers", "cases.py"), case=""),
]
#: Unusual ops without a defect; what `thread_left` and `child_left` start must not outlive the gate.
UNUSUAL = ["nan_right", "thread_left", "child_left", "descriptors_closed"]

#: Accepted reasons why a check of a sample op is not run without a GPU.
ACCEPTED = (
    'not what this op is for|function in C|no case has edge="empty"|the op is a Python callable'
    "|the fake kernel also fails with all tensors on CUDA|has neither a reference nor gradcheck|it has no gradient"
    "|has a gradient, but no case"
)

DEFECTIVE = Spec(
    "sample_defective",
    ["sample_defective"],
    companions=["sample_companion"],
    libraries={"libkernels": ["CPU", "CUDA"]},
    jobs=2,
    memory=1 << 30,
)
CORRECT = Spec(
    "sample_correct",
    ["sample_correct"],
    companions=["sample_defective"],
    libraries={"libkernels": ["CPU", "CUDA"]},
    jobs=2,
)

Gate = Callable[..., GateRun]


@pytest.fixture(scope="module")
def gate(gate_python: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Gate:
    """Run the gate once for each torch, spec and cases."""

    @cache
    def once(torch: str, name: str, text: str | None, checks: tuple[str, ...]) -> GateRun:
        spec = {"defective": DEFECTIVE, "correct": CORRECT}.get(name) or Spec(f"sample_{name}", [f"sample_{name}"])
        folder = tmp_path_factory.mktemp(f"gate-{name}")
        path: Path | None = cases(name) if text is None else None
        if text:
            path = folder / "given.py"
            path.write_text(f"from builder.gate import Case\n{text}")
        selected = replace(spec, checks=list(checks))
        return run_gate(pack_gate(gate_python(torch), folder, selected, path))

    def run(torch: str, name: str, *checks: str, cases: str | None = None) -> GateRun:
        return once(torch, name, cases, checks)

    return run


@pytest.fixture(scope="module")
def defective(gate: Gate) -> GateRun:
    """One run of the gate on all defects."""
    return gate(OLD, "defective")


def found(run: GateRun, defect: Defect) -> str:
    """The reason of the failure."""
    failed = [o for o in run.of(defect.name, defect.check) if o.verdict == FAILED and o.case == defect.case]
    assert failed, [(o.check, o.case, o.verdict, o.reason) for o in run.of(defect.name)]
    return failed[0].reason


GRADCHECK_ALONE = """
CASES = [
    Case(
        "sample_defective::gradient_percent",
        lambda make: [make.randn(2, 3, grad=True), make.randn(2, 3, grad=True)],
        invariant=lambda result, x, _: None,
        gradcheck=True,
    )
]
"""


REFERENCE_RAISES = """
CASES = [
    Case(
        "sample_defective::gradient_percent",
        lambda make: [make.randn(2, 3), make.randn(2, 3)],
        reference=lambda x, _: x.view(7),
        side_effects={side_effects},
    )
]
"""


@pytest.mark.parametrize("side_effects", [False, True])
def test_a_reference_that_raises_without_the_extension_is_a_mistake_in_cases(gate: Gate, side_effects: bool) -> None:
    """With side effects the reference runs in the process of the extension, which may be at fault."""
    run = gate(OLD, "defective", "values", cases=REFERENCE_RAISES.format(side_effects=side_effects))
    (failed,) = [one for one in run.of("sample_defective::gradient_percent", "values") if one.verdict == FAILED]
    assert "the reference of the case raises RuntimeError" in failed.reason
    assert (failed.evidence.get("mistake") == "cases.py") is not side_effects


def test_a_wrong_gradient_is_found_without_a_reference(gate: Gate) -> None:
    run = gate(OLD, "defective", "gradients", cases=GRADCHECK_ALONE)
    (reason,) = [outcome.reason for outcome in run.of("sample_defective::gradient_percent", "gradients")]
    assert "gradcheck: Jacobian mismatch" in reason


RETURNS_INT = """
CASES = [Case("sample_correct::count", lambda make: [make.randn(2, 3)])]
"""


def test_an_op_that_returns_a_number_has_no_device(gate: Gate) -> None:
    run = gate(OLD, "correct", "fake", "compile", cases=RETURNS_INT)
    (fake,) = run.of("sample_correct::count", "fake")
    assert fake.verdict == PASSED, fake.reason
    (compiled,) = run.of("sample_correct::count", "compile")
    assert compiled.verdict == FAILED
    assert "an op that returns a number" in compiled.reason
    assert "op with a fake kernel" not in compiled.reason


STALE_DEVICES = """
CASES = [
    Case("sample_correct::multiply", lambda make: [make.randn(2), make.randn(2)], devices=["cuda"]),
    Case("sample_correct::pick", lambda make: [make.randn(2)], devices=["cuda"]),
    Case("sample_correct::pick", lambda make: [make.randn(2)], "two"),
]
"""


def test_a_case_that_excludes_the_cpu_is_named_if_the_op_has_a_cpu_kernel(gate: Gate) -> None:
    run = gate(OLD, "correct", "values", cases=STALE_DEVICES)
    (multiply,) = run.of("sample_correct::multiply", "values")
    assert multiply.verdict == NOT_RUN
    assert multiply.reason.endswith("but the op has a CPU kernel: remove `devices` from its cases in cases.py")
    (pick,) = (outcome for outcome in run.of("sample_correct::pick", "values") if outcome.case == "plain")
    assert "CPU kernel" not in pick.reason, "another case of the op runs on the CPU"


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.op)
def test_a_defect_is_found_and_named(defective: GateRun, defect: Defect) -> None:
    reason = found(defective, defect)
    for pattern in defect.patterns:
        assert re.search(pattern, reason, re.IGNORECASE), reason
    assert len(reason) < 600, reason
    assert "Traceback" not in reason


def test_nothing_else_fails(defective: GateRun) -> None:
    """Every op runs completely, whatever the others do, and fails only because of its own defect."""
    allowed = {(defect.name, check) for defect in DEFECTS for check in (defect.check, *defect.also)}
    allowed.add(("", "import-order"))
    red = {(outcome.op, outcome.check) for outcome in defective.failures}
    assert red <= allowed, "\n".join(
        f"{o.op} {o.check}: {o.reason}" for o in defective.failures if (o.op, o.check) not in allowed
    )
    for name in UNUSUAL:
        verdicts = {outcome.verdict for outcome in defective.of(f"sample_defective::{name}", "values")}
        assert verdicts == {PASSED}, defective.of(f"sample_defective::{name}")
    # Only checks that the cases omit or that need a GPU may be "not run".
    for outcome in defective.answer.outcomes:
        if outcome.verdict == NOT_RUN and outcome.check not in GPU:
            assert re.search(ACCEPTED, outcome.reason), outcome


def test_the_order_that_crashes_is_named(defective: GateRun) -> None:
    """The companion exports the same symbol as the extension, which crashes if the companion is imported first."""
    failed = [o for o in defective.answer.outcomes if o.check == "import-order" and o.verdict == FAILED]
    assert failed
    for outcome in failed:
        assert "SIGSEGV" in outcome.reason
        assert re.search(r"sample_companion.*sample_defective", outcome.reason), outcome.reason
        assert re.search(r"sample_start of libkernels\.so, at <module> \(__init__\.py:\d+\)", outcome.reason), (
            outcome.reason
        )
        assert "Native stack" in str(outcome.evidence)
    # The reason also names an order that works.
    assert any(re.search(r"sample_defective.*sample_companion", o.reason) for o in failed), failed
    passed = [o for o in defective.answer.outcomes if o.check == "import-order" and o.verdict == PASSED]
    assert all("sample_companion, sample_defective" not in o.case for o in passed)


def test_a_crash_shows_where(defective: GateRun) -> None:
    for op in ("segfault", "aborting"):
        (outcome,) = (o for o in defective.of(f"sample_defective::{op}", "values") if o.verdict == FAILED)
        assert "in native" in str(outcome.evidence), outcome.evidence  # the Python function that called it


def test_the_gate_fails_and_leaves_nothing(defective: GateRun) -> None:
    assert defective.ran.code == 1
    assert defective.files == ()
    # An op prints 100 MB, which neither the answer nor the terminal repeats.
    assert defective.answer_bytes < 4 << 20
    assert len(defective.ran.out) < 200_000
    for defect in DEFECTS:
        assert defect.name in defective.ran.out, defect.name


@pytest.mark.parametrize("op", ["no_fake", "fake_strides", "fake_dtype", "fake_mixed", "fake_device", "misread_input"])
def test_defects_are_found_with_the_newest_torch(gate: Gate, op: str) -> None:
    """Its messages differ, and it checks more by itself."""
    run = gate(NEW, "defective", "dispatch", "fake", "devices", "layouts")
    assert run.ran.code == 1
    (defect,) = (defect for defect in DEFECTS if defect.op == op)
    reason = found(run, defect)
    for pattern in defect.patterns:
        assert re.search(pattern, reason, re.IGNORECASE), reason


@pytest.mark.parametrize("torch", [OLD, NEW])
def test_a_correct_extension_passes(gate: Gate, torch: str) -> None:
    run = gate(torch, "correct")
    assert not run.failures, run.failure_text()
    assert run.ran.code == 0, run.ran.all
    assert run.files == ()
    passed = {(o.op, o.check) for o in run.answer.outcomes if o.verdict == PASSED}
    of_extension = {check for _, check in passed if (_, check) == ("", check)}
    for check in CHECKS:
        if check not in GPU:
            assert ("sample_correct::multiply", check) in passed or check in of_extension, check
    # A composite kernel does not show that CUDA works.
    assert [o.verdict for o in run.of("sample_correct::squared", "dispatch")] == [NOT_RUN]
    assert {o.verdict for o in run.answer.outcomes if o.check in GPU} == {NOT_RUN}


@pytest.mark.parametrize(
    ("text", "patterns"),
    [
        ("from builder.gate import Case\n\nCASES = [Case(\n", ("cases.py", "SyntaxError|never closed", "line 4|:4")),
        ("CASES = 7\n", ("cases.py", "CASES")),
        ("import os\n\nos.abort()\n", ("cases.py", "SIGABRT")),
    ],
    ids=["syntax", "type", "abort"],
)
def test_invalid_cases(gate: Gate, text: str, patterns: tuple[str, ...]) -> None:
    run = gate(OLD, "correct", "ops", "values", cases=text)
    assert run.ran.code == 1, run.ran.all
    assert any(all(re.search(pattern, o.reason) for pattern in patterns) for o in run.failures), run.failure_text()
    assert not [o for o in run.answer.outcomes if o.verdict == PASSED], "no op ran, so nothing may pass"


def test_without_cases(gate: Gate) -> None:
    """Each op is named and not run; nothing passes and nothing fails."""
    run = gate(OLD, "correct", "ops", cases="")
    assert run.ran.code == 0
    assert {o.verdict for o in run.answer.outcomes} == {NOT_RUN}
    named = {o.op for o in run.answer.outcomes if o.check == "ops"}
    assert {"sample_correct::multiply", "sample_correct::squared", "sample_correct._bound.total"} <= named


UNDEFINED = """
CASES = [Case("sample_correct::undefined", lambda make: [make.randn(2)])]
"""


def test_an_op_that_no_library_defines(gate: Gate) -> None:
    run = gate(OLD, "correct", "ops", cases=UNDEFINED)
    assert run.ran.code == 1, run.ran.all
    [outcome] = [o for o in run.of("sample_correct::undefined") if o.verdict == FAILED]
    assert 'add `m.def("undefined(ARGUMENTS) -> RESULT")` to `TORCH_LIBRARY(sample_correct, m)`' in outcome.reason


CALLS_CUDA = """
import torch

torch._C._cuda_getDeviceCount()  # what is_available() calls on a machine without a driver
CASES = [Case(op="torch.zeros", inputs=lambda make: (3,), kwargs={"device": "cuda"})]
"""


def test_a_call_of_cuda_without_a_gpu_is_named_as_such(gate: Gate) -> None:
    run = gate(OLD, "correct", "values", cases=CALLS_CUDA)
    reasons = {o.reason for o in run.of("torch.zeros", "values")}
    assert any(re.search("no GPU that torch can use|no NVIDIA driver", reason) for reason in reasons), reasons
    assert not any("forked" in reason for reason in reasons)


def test_three_modules_are_imported_in_each_order(gate_python: Callable[[str], Path], tmp_path: Path) -> None:
    """Torch may be imported before, between and after modules that do not import it."""
    spec = Spec("none", ["colorsys", "tabnanny"], checks=["import-order"], has_cases=False)
    [order] = run_gate(pack_gate(gate_python(OLD), tmp_path, spec, None)).of("", "import-order")
    assert order.reason == "no case could be called after the imports, which alone succeed in 6 orders"
    names = ("torch", "colorsys", "tabnanny")
    assert set(order.evidence["orders"]) == {", ".join(one) for one in itertools.permutations(names)}


LAZY = Spec("sample_lazy", ["sample_lazy"], checks=["ops", "loaded", "import-order"])


@pytest.fixture
def lazy(gate_python: Callable[[str], Path], tmp_path: Path) -> Callable[[Spec], GateRun]:
    """Run the gate on sample_lazy without cases."""

    def run(spec: Spec) -> GateRun:
        return run_gate(pack_gate(gate_python(OLD), tmp_path, spec, None))

    return run


def test_a_library_that_no_import_loads_is_a_remark(lazy: Callable[[Spec], GateRun]) -> None:
    """So the recipe that imports less does not look better than the honest one."""
    run = lazy(LAZY)
    remarks = {(o.check, o.case): o.reason for o in run.answer.outcomes if o.remark}
    assert "`imports: [sample_lazy, sample_lazy._bound]`" in remarks["loaded", "sample_lazy/_bound.abi3.so"]
    assert "no op was found" in remarks["ops", ""]
    [order] = run.failures
    assert "libc10.so: cannot open shared object file" in order.reason
    assert "`needs_first: [torch]`" in order.reason
    assert "  remark    loaded " in run.ran.out


def test_needs_first_and_honest_imports_leave_no_finding(lazy: Callable[[Spec], GateRun]) -> None:
    run = lazy(replace(LAZY, imports=["sample_lazy", "sample_lazy._bound"], needs_first=["torch"]))
    assert run.ran.code == 0, run.failure_text()
    assert not [o for o in run.answer.outcomes if o.remark]
    assert [(o.case, o.verdict) for o in run.answer.outcomes if o.check == "loaded"] == [
        ("sample_lazy/_bound.abi3.so", PASSED)
    ]
    assert "sample_lazy._bound.total" in {o.op for o in run.answer.outcomes if o.check == "ops"}


def test_accepted_findings_do_not_fail_the_gate_and_are_not_passed(lazy: Callable[[Spec], GateRun]) -> None:
    known: list[dict[str, Any]] = [
        {"check": "import-order", "reason": "documented upstream"},
        {"check": "loaded", "op": "sample_lazy/_bound.abi3.so", "cell": "torch*-cp*", "reason": "loaded on demand"},
    ]
    run = lazy(replace(LAZY, accepts=known))
    assert run.ran.code == 0, run.failure_text()
    accepted = {o.check: o.accepted for o in run.answer.outcomes if o.verdict == "accepted"}
    assert accepted == {"import-order": "documented upstream", "loaded": "loaded on demand"}
    assert not [o for o in run.answer.outcomes if o.verdict == PASSED]
    assert "  accepted  loaded " in run.ran.out


def test_an_extension_that_cannot_be_imported(gate: Gate) -> None:
    run = gate(OLD, "import_crash", cases="CASES = []\n")
    assert run.ran.code == 1, run.ran.all
    assert any(re.search("import.*sample_import_crash", o.reason) and "SIGSEGV" in o.reason for o in run.failures), (
        run.failure_text()
    )
    assert not [o for o in run.answer.outcomes if o.verdict == PASSED], "no op ran, so nothing may pass"


def test_a_gate_that_is_killed_leaves_nothing(gate_python: Callable[[str], Path], tmp_path: Path) -> None:
    """SIGKILL to the gate while an op loops forever, after it started a program in a new session."""
    spec = replace(DEFECTIVE, checks=["edges"], seconds=PATIENCE)
    packed = pack_gate(gate_python(OLD), tmp_path, spec, cases("defective"))
    gate = subprocess.Popen(
        packed.command, env={**os.environ, **packed.env}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:

        def started() -> bool:
            assert gate.poll() is None
            return any("sleep 3600" in line for line in packed.processes().values())

        wait_until(started, "the program that the op starts")
        gate.kill()
        gate.wait()
        packed.nothing_left()
    finally:
        gate.kill()
        gate.wait()
        packed.kill()
