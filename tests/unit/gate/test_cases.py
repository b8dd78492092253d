"""Cases: each op has one and each names an op, mistakes in cases.py, findings that a recipe accepts, registration."""

import runpy
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from builder.gate.check_table import CHECKS
from builder.gate.coverage import CaseFacts, case_coverage, may_take_tensor, missing_empty_cases
from builder.gate.imports.cases_fault import is_mistake, line_of
from builder.gate.imports.registration import kernel_line, no_kernel
from builder.gate.outcome import (
    ACCEPTED,
    FAILED,
    MISTAKE_IN_CASES,
    NOT_RUN,
    PASSED,
    Accept,
    Outcome,
    accept,
    cell_name,
    finding,
)
from builder.gate.torch_limits import (
    LIMITS,
    UnsupportedByTorchError,
    raise_if_unsupported,
    traceback_text,
    why_unsupported,
)


def case(op: str, name: str = "plain", edge: str = "", missing: str = "") -> CaseFacts:
    return CaseFacts(0, op, name, edge=edge, missing=missing)


@pytest.mark.parametrize(
    ("ops", "named", "failed"),
    [
        pytest.param(["ns::a", "pkg.f"], ["ns::a"], ["pkg.f"], id="an op without a case"),
        pytest.param(["ns::a.Tensor"], ["ns::a"], [], id="the only overload need not be named"),
        pytest.param(["ns::a"], ["ns::a.default"], [], id="the default overload may be named"),
        pytest.param(["ns::a", "ns::a.out"], ["ns::a.default"], ["ns::a.out"], id="only the default overload"),
        pytest.param(["ns::a", "ns::a.out"], ["ns::a"], ["ns::a.out"], id="one of several overloads"),
        pytest.param(["ns::a", "ns::a.out"], ["ns::a", "ns::a.out"], [], id="each of several overloads"),
        pytest.param(["ns::a.x", "ns::a.y"], ["ns::a"], ["ns::a.x", "ns::a.y"], id="none of several overloads"),
        pytest.param(["ns::a"], ["ns::a", "ns::a"], ["ns::a"], id="two cases with the same name"),
    ],
)
def test_each_op_and_overload_has_a_case(ops: list[str], named: list[str], failed: list[str]) -> None:
    outcomes = case_coverage(ops, [case(op) for op in named])
    assert [one.op for one in outcomes if one.verdict == FAILED] == failed
    assert {one.verdict for one in outcomes if one.op not in failed} <= {PASSED}


def test_a_case_of_an_unknown_op_names_the_nearest_op() -> None:
    unknown = CaseFacts(0, "ns::bias_gellu", "plain", missing="ns::bias_gellu: no op", unknown=True)
    outcomes = case_coverage(["ns::bias_gelu.default"], [unknown])
    assert [one.reason for one in outcomes if one.case] == [
        "this case in cases.py cannot be called: ns::bias_gellu: no op; did you mean ns::bias_gelu?"
    ]
    assert all(MISTAKE_IN_CASES.items() <= one.evidence.items() for one in outcomes)
    assert {one.verdict for one in outcomes} == {FAILED}


def test_a_module_that_cannot_be_imported_is_no_mistake_in_cases() -> None:
    outcomes = case_coverage(["pkg.functional.*"], [case("pkg.f", missing="ImportError: undefined symbol")])
    assert [one.evidence.get("mistake") for one in outcomes] == [None, None]


def test_an_op_without_an_empty_case_is_reported_unless_it_takes_no_tensor() -> None:
    cases = [case("ns::a"), case("ns::b"), case("ns::b", "none", "empty")]
    no_tensor = CaseFacts(0, "pkg.version", "plain", takes_tensor=False)
    assert [one.op for one in missing_empty_cases([*cases, no_tensor])] == ["ns::a"]


@pytest.mark.parametrize(
    ("docstring", "may"),
    [
        pytest.param("check(arg0: int, arg1: int, arg2: int) -> bool\n", False, id="three integers"),
        pytest.param("f(x: float = 1.0, *, on: bool = True) -> None", True, id="a star is not understood"),
        pytest.param("f(n: typing.SupportsInt | typing.SupportsIndex) -> int", False, id="pybind11 3"),
        pytest.param("f(x: torch.Tensor, n: int) -> torch.Tensor", True, id="a tensor"),
        pytest.param("f() -> int", False, id="no parameter"),
        pytest.param("1. f(n: int) -> int\n2. f(x: torch.Tensor) -> int", True, id="one overload with a tensor"),
        pytest.param("Adds numbers.", True, id="unknown"),
    ],
)
def test_the_docstring_of_pybind11_says_whether_a_function_takes_a_tensor(docstring: str, may: bool) -> None:
    function = type("Function", (), {"__doc__": docstring})()
    assert may_take_tensor(function) is may


def test_an_op_in_not_claimed_needs_no_case_and_must_exist() -> None:
    outcomes = case_coverage(["ns::a.default"], [], {"ns::a": "it decodes pictures", "ns::gone": "a reason"})
    assert [(one.op, one.verdict) for one in outcomes] == [("ns::a.default", NOT_RUN), ("ns::gone", FAILED)]
    assert outcomes[0].reason == "not claimed: it decodes pictures"


CASE = """\
def __getattr__(name):
    raise AttributeError(name)
class Case:
    def __init__(self, op):
        pass
class Make:
    def randn(self):
        raise TypeError("'str' is no size")
def case(edge):
    raise ValueError(f"edge is {edge!r}")
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a packed gate, an extension beside it, and a stand-in for torch."""
    root, site = tmp_path / "gate", tmp_path / "site"
    for file, text in {
        root / "builder" / "gate" / "case.py": CASE,
        root / "refs.py": "def wrong():\n    return undefined\n",
        site / "extension" / "__init__.py": "def call():\n    return undefined\n",
        site / "extension" / "broken.py": "import missing_requirement\n",
        site / "faketorch" / "__init__.py": "def __getattr__(name):\n    raise AttributeError(name)\n",
    }.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    for folder in (root, site, root / "builder" / "gate"):
        monkeypatch.syspath_prepend(str(folder))
    torch = ModuleType("torch")
    torch.__file__ = str(site / "faketorch" / "__init__.py")
    monkeypatch.setitem(sys.modules, "torch", torch)
    for name in ("case", "refs", "extension", "extension.broken", "faketorch"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return root


@pytest.mark.parametrize(
    ("code", "mistake", "line"),
    [
        ("CASES = [\n", True, ""),
        ("import os\n\nCASES = [undefined]\n", True, " (cases.py, line 3)"),
        ("import refs\nrefs.wrong()\n", True, " (refs.py, line 2)"),
        ("import extenson\n", True, " (cases.py, line 1)"),
        ("from extension import gone\n", True, " (cases.py, line 1)"),
        ("import faketorch\nfaketorch.float33\n", True, " (cases.py, line 2)"),
        ("import case\ncase.Case(opp=1)\n", True, " (cases.py, line 2)"),
        ("import case\ncase.case('emty')\n", True, " (cases.py, line 2)"),
        # The extension may be at fault:
        ("import extension\nextension.call()\n", False, " (cases.py, line 2)"),
        ("import extension.broken\n", False, " (cases.py, line 1)"),
        ("raise ImportError('lib.so: undefined symbol: f')\n", False, " (cases.py, line 1)"),
        ("raise RuntimeError('the op failed')\n", False, " (cases.py, line 1)"),
        ("raise TypeError('incompatible function arguments')\n", False, " (cases.py, line 1)"),
    ],
)
def test_a_mistake_is_an_error_of_the_code_of_cases_py(root: Path, code: str, mistake: bool, line: str) -> None:
    (root / "cases.py").write_text(code)
    with pytest.raises(Exception) as caught:  # noqa: PT011 (each code raises another one)
        runpy.run_path(str(root / "cases.py"))
    assert is_mistake(caught.value, root) is mistake
    assert line_of(caught.value, root) == line


CELL = "torch2.11.0-cu130-cp312"
FAKE = Outcome("fake", "ns::f.Tensor", "plain", FAILED, "no fake kernel")
REMARK = Outcome("loaded", "", "toy/_C.so", NOT_RUN, "not loaded", remark=True)


@pytest.mark.parametrize(
    ("one", "entry", "accepted"),
    [
        pytest.param(FAKE, Accept("fake", "why"), True, id="check"),
        pytest.param(FAKE, Accept("values", "why"), False, id="another check"),
        pytest.param(FAKE, Accept("fake", "why", op="ns::f"), True, id="op"),
        pytest.param(FAKE, Accept("fake", "why", op="ns::f.Tensor"), True, id="overload"),
        pytest.param(FAKE, Accept("fake", "why", op="ns::g"), False, id="another op"),
        pytest.param(FAKE, Accept("fake", "why", cell="torch2.11.*-cp312"), True, id="cell"),
        pytest.param(FAKE, Accept("fake", "why", cell="torch2.2.*"), False, id="another cell"),
        pytest.param(REMARK, Accept("loaded", "why", op="toy/_C.so"), True, id="remark"),
        pytest.param(replace(REMARK, remark=False), Accept("loaded", "why"), False, id="not run"),
        pytest.param(replace(FAKE, verdict=PASSED), Accept("fake", "why"), False, id="passed"),
    ],
)
def test_an_entry_accepts_what_all_its_keys_match(one: Outcome, entry: Accept, accepted: bool) -> None:
    [judged] = accept([one], [entry], CELL)
    assert (judged.verdict, judged.accepted) == ((ACCEPTED, "why") if accepted else (one.verdict, ""))
    assert (judged.reason, finding(judged)) == (one.reason, one)


def test_an_entry_that_is_gone_accepts_no_longer() -> None:
    judged = accept([FAKE, REMARK], [Accept("fake", "why"), Accept("loaded", "why")], CELL)
    assert accept(judged, [], CELL) == [FAKE, REMARK]


def test_the_name_of_the_cell_follows_from_the_versions() -> None:
    assert cell_name({"torch": "2.11.0+cu130", "cuda": "13.0", "python": "3.12.1"}) == CELL


#: From torch 2.11.
MESSAGE = (
    "Could not run 'mine::scale' with arguments from the 'CPU' backend. This could be because the operator doesn't"
    " exist for this backend, or was omitted during the selective/custom build process (if using custom build)."
)


def test_a_missing_kernel() -> None:
    assert no_kernel("mine::scale", MESSAGE) == (
        'has no CPU kernel: add `TORCH_LIBRARY_IMPL(mine, CPU, m) { m.impl("scale", &FUNCTION); }` to its C++ source; '
        'if it needs none, write `devices=("cuda",)` in the Case'
    )
    assert '`devices=("cpu",)`' in no_kernel("mine::scale", MESSAGE.replace("CPU", "CUDA"))
    assert '"scale.out"' in kernel_line("mine::scale.out", "CUDA")
    assert '"scale"' in kernel_line("mine::scale.default", "CUDA")


@pytest.mark.parametrize(
    ("op", "message"),
    [
        pytest.param("other::scale", MESSAGE, id="an op of another library"),
        pytest.param("mine.scale", MESSAGE, id="a Python callable"),
        pytest.param("mine::scale", MESSAGE.replace("CPU", "Meta"), id="a fake tensor"),
        pytest.param("mine::scale", "mine::scale: x has the wrong shape", id="another error"),
    ],
)
def test_other_messages_get_no_hint(op: str, message: str) -> None:
    assert no_kernel(op, message) == ""


#: Check, release, error of that torch for a correct op, part of the reason.
ERRORS = [
    (
        "compile",
        (2, 0),
        "torch._dynamo.exc.TorchRuntimeError: \n\nfrom user code:\n   File ...\n"
        "RuntimeError: Cannot call sizes() on tensor with symbolic sizes/strides",
        "torch 2.0 does not support symbolic sizes",
    ),
    (
        "compile",
        (2, 0),
        "BackendCompilerFailed: compiler_fn raised RuntimeError: !schema.hasAnyAliasInfo() INTERNAL ASSERT FAILED at "
        "FunctionalizeFallbackKernel.cpp: mutating and aliasing ops should all have codegen'd kernels",
        "torch 2.0 cannot trace an extension's op that writes to its arguments",
    ),
    (
        "compile",
        (2, 2),
        "torch._dynamo.exc.Unsupported: dynamic shape operator: sample_correct.positive.default",
        "torch 2.2 cannot trace an op whose result size depends on data",
    ),
    ("compile", (2, 2), "torch._dynamo.exc.InternalTorchDynamoError: No module named 'numpy'", "without numpy"),
    (
        "fake",
        (2, 0),
        "NotImplementedError: Could not run 'aten::geqrf' with arguments from the 'Meta' backend.",
        "torch 2.0 has no fake kernel for an op of torch",
    ),
    *(
        (
            "fake",
            (2, 2),
            '  File "/env/site-packages/torch/_refs/__init__.py", line 4552, in new_empty\n    return torch.empty(\n'
            '  File "/env/site-packages/torch/cuda/__init__.py", line 302, in _lazy_init\n    torch._C._cuda_init()\n'
            f"RuntimeError: {message}",
            "torch 2.2 initialises CUDA",
        )
        for message in (
            "Found no NVIDIA driver on your system.",
            "CUDA driver initialization failed, you might not have",
        )
    ),
    (
        "fake",
        (2, 3),
        '  File "/env/site-packages/theirs/scatter.py", line 21, in scatter_sum\n'
        "    out = torch.zeros(size, dtype=src.dtype, device=src.device)\n          ^^^^^^^^^^^^^^^^^^^^^\n"
        '  File "/env/site-packages/torch/cuda/__init__.py", line 284, in _lazy_init\n    raise RuntimeError(\n'
        "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use",
        "torch 2.3 initialises CUDA when a fake tensor is created",
    ),
    (
        "devices",
        (2, 0),
        "RuntimeError: Unhandled FakeTensor Device Propagation for ns.op.default, found two different devices",
        "torch 2.0 refuses two devices",
    ),
]


@pytest.mark.parametrize(("check", "release", "error", "reason"), ERRORS)
def test_a_limit_of_torch_is_recognised_and_is_a_failure_of_a_newer_torch(
    check: str, release: tuple[int, int], error: str, reason: str
) -> None:
    assert reason in why_unsupported(check, release, error)
    assert why_unsupported(check, (2, 11), error) == ""


def test_each_limit_has_an_example() -> None:
    shown = [why_unsupported(check, release, error) for check, release, error, _ in ERRORS]
    assert [one for one in LIMITS if not any(one.reason in why for why in shown)] == []
    assert {one.check for one in LIMITS} <= set(CHECKS)


@pytest.mark.parametrize(
    ("check", "error"),
    [
        # errors of the extension: its fake initialises CUDA, is missing, reads data
        ("fake", "RuntimeError: Found no NVIDIA driver on your system."),
        (
            "fake",
            '  File "/env/site-packages/theirs/ops.py", line 2, in fake\n    torch.cuda.current_device()\n'
            '  File "/env/site-packages/torch/cuda/__init__.py", line 674, in current_device\n    _lazy_init()\n'
            '  File "/env/site-packages/torch/cuda/__init__.py", line 302, in _lazy_init\n    torch._C._cuda_init()\n'
            "RuntimeError: Found no NVIDIA driver on your system.",
        ),
        ("fake", "NotImplementedError: Could not run 'ns::op' with arguments from the 'Meta' backend."),
        ("compile", "torch._dynamo.exc.Unsupported: call_method ListVariable() __setitem__"),
        ("export", "RuntimeError: Cannot call sizes() on tensor with symbolic sizes/strides"),
    ],
)
def test_other_errors_of_an_old_torch_are_failures(check: str, error: str) -> None:
    assert why_unsupported(check, (2, 0), error) == ""


def test_the_cause_of_an_exception_is_searched_too() -> None:
    def fails() -> None:
        try:
            raise RuntimeError("Cannot call sizes() on tensor with symbolic sizes/strides")
        except RuntimeError as error:
            raise ValueError("from user code:") from error

    with pytest.raises(ValueError, match="from user code") as caught:
        fails()
    assert "symbolic sizes" in traceback_text(caught.value)
    with pytest.raises(UnsupportedByTorchError, match=r"^torch 2\.0 does not support symbolic sizes"):
        raise_if_unsupported("compile", (2, 0), caught.value)
    raise_if_unsupported("compile", (2, 2), caught.value)
