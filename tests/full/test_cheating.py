"""Wheels with wrong results that try to look good: no `values` passes, and no run is without a failure.

Most attacks are functions of `cheats/attacks.py` in a wheel of pure Python, whose ops return x + 1 instead of 2 x.
"""

import contextlib
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from builder.gate.outcome import FAILED, PASSED, Answer, Spec
from builder.matrix.config import Recipe
from builder.proof import Verdict
from builder.proofs.cells import op_gate
from builder.proofs.cells.op_gate import CellProofs, run_gate
from tests.conftest import PATIENCE, ROOT
from tests.fixtures.gate_env import make_environment
from tests.unit.matrix import make

pytestmark = [pytest.mark.network, pytest.mark.slow]

WHEEL = ROOT / "tests/fixtures/gate_samples/cheats"

#: Attacks by an op that leave the other ops of the same run alone.
BY_OP = (
    "append_passed_lines",
    "use_the_own_journal",
    "exit_at_once",
    "exit_with_an_exit_handler",
    "raise_system_exit",
    "write_garbage_into_journals",
    "answer_as_a_lying_subclass",
    "replace_comparisons",
    "replace_functions_of_the_gate",
    "replace_output",
    "replace_the_clock",
    "print_passed",
    "leave_a_process_that_writes_later",
    "change_the_input",
    "rewrite_files_of_the_gate",
    "write_to_descriptors",
    "link_the_results_to_a_device",
    "return_from_a_copy",
)
#: Attacks by an op that may end the run.
ALONE = ("kill_the_scheduler", "kill_the_judge", "stop_the_fork_server", "inject_events", "forge_the_answer")
#: Attacks that stop a process of the gate, so that nothing would ever end.
STOPPING = (
    "stop_the_fork_server",
    "stop_the_fork_server_and_return",
    "stop_itself",
    "wait_for_the_terminal",
    "trace_stopped",
)
STOPPING_ALL = ("stop_the_scheduler", "stop_all_of_the_gate")
#: Attacks that take from the gate what it needs, and what the gate says.
STARVING = {
    "interrupt_the_scheduler": "exited with status 130",
    "terminate_the_scheduler": "exited with status 143",
    "crash_the_fork_server": "12 of 12 elements differ",
    "kill_the_own_group": "dies with SIGKILL",
    "close_all_descriptors": "closes or replaces standard output",
    "use_all_descriptors": "uses up the open files",
    "starve_the_fork_server": "12 of 12 elements differ",
    "starve_the_scheduler": "exited with status 1 ",
    "replace_journals_with_pipes": "something other than the gate writes into the results",
    "remove_the_folders": "deletes files",
    "leave_a_process_that_sleeps": "12 of 12 elements differ",
    "print_without_end": "prints more than 64.0 MiB",
}
#: Attacks while the extension is imported: a module of the wheel for each.
BY_IMPORT = ("gate_replaced", "torch_replaced", "fewer_cases", "worker_replaced")

CASES = """
from builder.gate import Case

CASES = [
    Case(f"cheats::{name}", lambda make: [make.rand(4, 3, low=2.0, high=3.0)], reference=lambda x: x * 2)
    for name in NAMES
]
"""

Cheat = Callable[..., Answer | str]


@pytest.fixture(scope="module")
def python(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with torch and the wheel, which also has files that Python or torch would execute."""
    files = dict.fromkeys(("cheats.pth", "sitecustomize.py"), "import cheats.startup\n")
    files["numpy.py"] = "import cheats.startup\nraise ModuleNotFoundError('torch works without numpy')\n"
    return _environment(store, tmp_path_factory.mktemp("cheats"), files)


@pytest.fixture(scope="module")
def without_startup(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with torch and the wheel, of which nothing runs before it is imported."""
    return _environment(store, tmp_path_factory.mktemp("cheats"), {})


def _environment(store: Path, folder: Path, more: Mapping[str, str]) -> Path:
    files = {f"cheats/{path.name}": path.read_text() for path in WHEEL.glob("*.py")} | dict(more)
    files["cheats-1.0.dist-info/METADATA"] = "Metadata-Version: 2.1\nName: cheats\nVersion: 1.0\n"
    files["cheats-1.0.dist-info/WHEEL"] = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = "cheats-1.0.dist-info/RECORD"
    files[record] = "".join(f"{name},,\n" for name in [*files, record])
    wheel = folder / "cheats-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return make_environment(store, folder / "env", "2.11.0", "3.12", [wheel])


@pytest.fixture
def cheat(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cheat]:
    """Run the gate as `build` does, for these ops, with one check.

    `seconds` is the limit of one case: short for an attack that waits for it, and long where an honest op must pass.
    """

    def gate(
        *ops: str,
        module: str = "cheats.attacks",
        seconds: float = PATIENCE,
        checks: Sequence[str] = ("values", "ops"),
        environment: str = "python",
    ) -> Answer | str:
        def spec_of(recipe: Recipe, jobs: int) -> Spec:
            return Spec("cheats", list(recipe.imports), jobs=jobs, seconds=seconds, checks=list(checks))

        monkeypatch.setattr(op_gate, "spec_of", spec_of)
        folder = tmp_path / "recipe"
        folder.mkdir()
        (folder / "cases.py").write_text(f"NAMES = {ops!r}\n{CASES}")
        recipe = replace(make.recipe(), folder=folder, imports=(module,))
        python = request.getfixturevalue(environment)
        return run_gate(python, recipe, tmp_path / "gate", jobs=2, log=tmp_path / "log", owner=f"cheat-{tmp_path.name}")

    yield gate
    log = tmp_path / "log"
    sys.stderr.write(log.read_text(errors="replace")[-2000:] if log.is_file() else "")


def values_of(answer: Answer, op: str) -> list[str]:
    return [one.verdict for one in answer.outcomes if one.check == "values" and one.op == f"cheats::{op}"]


def test_an_honest_op_passes_beside_the_others(cheat: Cheat) -> None:
    answer = cheat("honest", "wrong")
    assert isinstance(answer, Answer), answer
    assert values_of(answer, "honest") == [PASSED]
    assert values_of(answer, "wrong") == [FAILED]


def test_no_op_gives_itself_a_passed(cheat: Cheat) -> None:
    answer = cheat(*BY_OP, "honest")
    assert isinstance(answer, Answer), answer
    assert values_of(answer, "honest") == [PASSED]
    verdicts = {op: values_of(answer, op) for op in BY_OP}
    assert all(FAILED in found and PASSED not in found for found in verdicts.values()), verdicts


@pytest.mark.parametrize("attack", ALONE)
def test_no_op_ends_the_run_without_a_failure(cheat: Cheat, attack: str) -> None:
    assert_failed(cheat(attack, "wrong", seconds=6), attack)


@pytest.mark.parametrize("attacks", [STOPPING, *((attack,) for attack in STOPPING_ALL)], ids=" ".join)
def test_a_process_of_the_gate_that_is_stopped_is_found_at_once(cheat: Cheat, attacks: tuple[str, ...]) -> None:
    """The time limit of a case is an hour: what is stopped is found without it, in each check that calls ops."""
    answer = cheat(*attacks, seconds=3600, checks=(), environment="without_startup")
    for attack in attacks:
        assert_failed(answer, attack)
    if attacks != STOPPING:
        assert "stopped or killed it" in str(answer)
        return
    assert isinstance(answer, Answer), answer
    reasons = {one.op: one.reason for one in answer.outcomes if one.check == "values"}
    for attack in attacks[:2]:
        assert reasons[f"cheats::{attack}"].startswith("kills or stops its parent process"), reasons
    assert reasons["cheats::stop_itself"].startswith("is stopped by a signal such as SIGSTOP"), reasons
    [order] = [one for one in answer.outcomes if one.check == "import-order"]
    assert (order.verdict, "stopped by a signal" in order.reason) == (FAILED, True), order


@pytest.mark.parametrize("attack", STARVING)
def test_a_gate_that_is_starved_fails_and_nothing_runs_on(cheat: Cheat, attack: str, tmp_path: Path) -> None:
    """The time limit of a case is an hour, so a gate that waits for something would not end here."""
    answer = cheat(attack, seconds=3600, environment="without_startup")
    assert_failed(answer, attack)
    [values] = [one for one in CellProofs("", None).of_gate(answer) if one.check == "values"]
    assert STARVING[attack] in values.reason
    left = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            if f"cheat-{tmp_path.name}".encode() in (process / "environ").read_bytes():
                left.append((process / "cmdline").read_bytes())
    assert not left


@pytest.mark.parametrize("attack", BY_IMPORT)
def test_no_import_makes_values_pass(cheat: Cheat, attack: str) -> None:
    assert_failed(cheat("wrong", "wrong_too", module=f"cheats.{attack}", seconds=6), "wrong")


def assert_failed(answer: Answer | str, op: str) -> None:
    """A check failed, so the command does not exit with 0, and no `values` of the op passed."""
    proofs = CellProofs("", None).of_gate(answer)
    assert Verdict.FAILED in {proof.verdict for proof in proofs}, answer
    if isinstance(answer, Answer):
        assert PASSED not in values_of(answer, op)
        assert PASSED not in values_of(answer, "wrong")
