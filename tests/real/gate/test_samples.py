"""Samples of ops that write to arguments, take unusual inputs, or lose gradients: correct ops pass every check."""

import re
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from builder.gate.outcome import CHECKED, FAILED, LOST, NOT_RUN, PASSED, RECORDED, Spec
from builder.recipes.new_extension import wrapped_extension
from tests.fixtures.gate_env import (
    GateRun,
    build_wheel,
    cases,
    make_environment,
    outcome_text,
    pack_gate,
    run_gate,
    torch_environment,
)

pytestmark = [pytest.mark.network, pytest.mark.slow]

#: The checks that call an op.
CHECKS = ("values", "gradients", "layouts", "repeat", "memory", "opcheck", "fake", "devices", "export", "compile")
#: The checks that run for each sample.
SAMPLES = {"unusual": ("ops", "dispatch", *CHECKS), "gradients": ("values", "gradients")}
#: Op and check, and a regular expression for the reason. What an op writes to its arguments is a result.
DEFECTS = {
    ("sample_unusual::into_unfinished", "memory"): "depends on uninitialised memory",
    ("sample_unusual::into_flickering", "repeat"): "two runs with the same input give different bits",
    ("sample_unusual::into_without_strides", "layouts"): "with argument 0 strided, .* must be copied back",
    ("sample_unusual.into_while_traced", "export"): "the traced result",
    ("sample_unusual.into_while_traced", "compile"): "the traced result",
    ("sample_unusual::update_untested", "values"): "argument 1 after the call .* the reference does not change this",
    ("sample_unusual::update_wrongly", "values"): "float32: argument 1 after the call is",
    ("sample_unusual::update_wrongly_for_an_invariant", "values"): "the state must be the double",
    ("sample_unusual::update_unfinished", "memory"): "depends on uninitialised memory",
    ("sample_unusual::update_flickering", "repeat"): "two runs with the same input give different bits",
    ("sample_unusual::update_without_strides", "layouts"): "with argument 1 strided, argument 1 after the call is",
    ("sample_unusual.update_while_traced", "export"): "argument 1 after the call is",
    ("sample_unusual.update_while_traced", "compile"): "argument 1 after the call is",
    ("sample_unusual::scale_wrongly_", "gradients"): "float32: the gradient of argument 1 is",
    ("sample_unusual::not_conjugate_product", "values"): r"complex64: the result is -?\d.*j at",
    ("sample_unusual.sparse_changed", "values"): "float32: the op changes its input argument 0",
    ("sample_unusual.conjugate", "gradients"): "complex64: the gradient of argument 0 is",
}
EITHER = "; if the reference in cases.py is the wrong side, correct it and test again"

Found = Callable[[str], GateRun]


@pytest.fixture(scope="module")
def found(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Found:
    """One run of the gate on all ops of a sample."""
    folder = tmp_path_factory.mktemp("samples")
    wheels = [build_wheel(folder, f"sample_{name}") for name in SAMPLES]
    python = make_environment(store, folder / "torch", "2.11.0", "3.12", wheels)

    @cache
    def gate(name: str) -> GateRun:
        spec = Spec(f"sample_{name}", [f"sample_{name}"], checks=list(SAMPLES[name]))
        return run_gate(pack_gate(python, folder / name, spec, cases(name)))

    return gate


@pytest.mark.parametrize(("op", "check"), DEFECTS)
def test_a_defect_is_found(found: Found, op: str, check: str) -> None:
    [outcome] = found("unusual").of(op, check)
    assert outcome.verdict == FAILED, outcome
    assert re.search(DEFECTS[op, check], outcome.reason), outcome.reason


def test_correct_ops_pass_every_check(found: Found) -> None:
    others = [one for one in found("unusual").failures if (one.op, one.check) not in DEFECTS]
    assert not others, outcome_text(others)


def test_ops_that_write_pass_all_that_they_are_able_to(found: Found) -> None:
    unable = {
        "sample_unusual::into": {"gradients"},
        "sample_unusual::update": {"gradients"},
        "sample_unusual::into_composite": set[str](),
        "sample_unusual::scale_": {"opcheck", "compile"},
        "sample_unusual.scale_in_place": {"opcheck"},
    }
    for op, checks in unable.items():
        passed = {one.check for one in found("unusual").of(op) if one.verdict == PASSED}
        assert passed & set(CHECKS) == set(CHECKS) - checks, op
    [outcome] = found("unusual").of("sample_unusual::scale_without_cases_", "gradients")
    assert (outcome.verdict, "no case tests it" in outcome.reason) == (NOT_RUN, True), outcome


def test_unusual_inputs_run(found: Found) -> None:
    ran = {(one.op, one.case, one.check): one.verdict for one in found("unusual").answer.outcomes}
    for check in ("values", "layouts", "repeat", "memory"):
        assert ran["sample_unusual.sparse_product", "CSR", check] == PASSED
        assert ran["sample_unusual.sparse_product", "plain", check] == PASSED
    assert ran["sample_unusual.sparse_doubled", "plain", "values"] == PASSED
    for check in ("ops", "dispatch"):  # its case names the default overload
        assert [one.verdict for one in found("unusual").of("sample_unusual::plain", check)] == [PASSED]
    [outcome] = found("unusual").of("sample_unusual::conjugate_product", "values")
    assert 0 < outcome.evidence["errors"]["complex64"] < 1e-6
    assert [one.verdict for one in found("unusual").of("sample_unusual::conjugate_product", "gradients")] == [PASSED]


@pytest.mark.parametrize("op", ["::lost", "::into", "::scale_", ".detached"])
def test_an_op_without_a_gradient_is_a_remark_with_the_cure(found: Found, op: str) -> None:
    [outcome] = found("gradients").of(f"sample_gradients{op}", "gradients")
    assert (outcome.verdict, outcome.remark, outcome.evidence) == (NOT_RUN, True, {"gradient": LOST})
    cure = f'register_autograd("sample_gradients{op}"' if "::" in op else "torch.autograd.Function"
    assert outcome.reason.startswith("it has no gradient: the gradients of its inputs are lost; ")
    assert cure in outcome.reason
    assert 'write `not_claimed={"gradients": REASON}` in its Case' in outcome.reason


def test_an_op_whose_backward_is_in_the_wheel_fails_without_a_gradient(found: Found) -> None:
    [outcome] = found("gradients").of("sample_gradients::leaky_forward", "gradients")
    assert (outcome.verdict, outcome.evidence) == (FAILED, {"gradient": LOST})
    assert "are lost, although leaky_backward computes them; add `torch.library.register_autograd(" in outcome.reason
    assert found("gradients").of("sample_gradients::leaky_backward", "gradients") == []


def test_a_gradient_that_torch_recorded_on_the_cpu_says_nothing_about_cuda(found: Found) -> None:
    for_cpu, alone = found("gradients").of("sample_gradients.recorded", "gradients")
    assert (alone.verdict, alone.evidence) == (NOT_RUN, {"gradient": RECORDED})
    assert alone.reason.startswith("it is right on the CPU, where torch's own operations")
    [wrong] = found("gradients").of("sample_gradients.recorded_wrongly", "gradients")
    assert (wrong.verdict, "the reference has" in wrong.reason) == (FAILED, True), wrong
    [untested] = found("gradients").of("sample_gradients.recorded_untested", "gradients")
    assert "no case tests it" in untested.reason
    assert (for_cpu.case, for_cpu.verdict) == ("for the CPU", PASSED)
    [outcome] = found("gradients").of("sample_gradients.split_forward", "gradients")
    assert (outcome.verdict, outcome.evidence) == (FAILED, {"gradient": LOST})
    assert outcome.reason.startswith(
        "on CUDA it has no gradient: the gradients of its inputs are lost, although split_backward computes them"
    )


def test_other_ops_are_not_accused_of_losing_gradients(found: Found) -> None:
    [checked] = found("gradients").of("sample_gradients::joined", "gradients")
    assert (checked.verdict, checked.evidence) == (PASSED, {"gradient": CHECKED})
    [untested] = found("gradients").of("sample_gradients::untested", "gradients")
    assert untested.reason == "the op has a gradient, but no case tests it: make an input with grad=True"
    [meant] = found("gradients").of("sample_gradients::meant", "gradients")
    assert (meant.verdict, meant.reason, meant.remark) == (NOT_RUN, "not claimed: it is for inference", False)
    assert found("gradients").of("sample_gradients::largest", "gradients") == []


def test_a_difference_names_both_sides_and_that_the_reference_may_be_wrong(found: Found) -> None:
    [one] = found("gradients").of("sample_gradients::is_positive", "values")
    assert one.reason == f"float32: the result is True, the reference has False{EITHER}"
    [several] = found("gradients").of("sample_gradients.detached", "values")
    assert "; 12 of 12 elements differ, at most by 1 (allowed: 1e-05 + 0.0001 * expected)" in several.reason
    assert several.reason.endswith(EITHER)


#: Runs what `init` writes for ops of these schemas, or for functions of a compiled module; here written in PyTorch.
JOINED = """
import sys, torch
from types import SimpleNamespace
def guarded(kernel):
    def call(*args):
        with torch._C._AutoDispatchBelowAutograd():
            return kernel(*args)
    return call
results = list if sys.argv[1] == "Tensor[]" else tuple
f_forward = guarded(lambda x, a: results((a * x / x.sum(), x.sum())))
f_backward = guarded(lambda g, x, t, a: a * (g / t - (g * x).sum() / t**2))
library = torch.library.Library("mine", "DEF")
library.define(f"f_forward(Tensor x, float a) -> {sys.argv[1]}")
library.define("f_backward(Tensor grad, Tensor x, Tensor total, float a) -> Tensor")
library.impl("f_forward", f_forward, "CPU")
library.impl("f_backward", f_backward, "CPU")
_C = SimpleNamespace(f_forward=f_forward, f_backward=f_backward)
f = torch.ops.mine.f_forward
text = sys.stdin.read()
exec(text[text.index("class _" if "class _" in text else "# The gradient of"):])
x = torch.rand(5, dtype=torch.float64, requires_grad=True)
print(*(one.requires_grad for one in f(x, 0.7)))
print(torch.autograd.gradcheck(lambda x: f(x, 0.7)[0], (x,)))
"""
BOUND = 'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("f_forward", &f_forward); m.def("f_backward", &f_backward); }'


@pytest.mark.parametrize("bound", ["", BOUND])
@pytest.mark.parametrize(
    ("returns", "code", "schema"),
    [
        ("std::vector<at::Tensor>", "{out, total}", "Tensor[]"),
        ("std::tuple<at::Tensor, at::Tensor>", "std::make_tuple(out, total)", "(Tensor, Tensor)"),
    ],
)
def test_init_joins_a_forward_with_two_results(
    store: Path, tmp_path: Path, returns: str, code: str, schema: str, bound: str
) -> None:
    source = f"{returns} f_forward(at::Tensor x, double a) {{ return {code}; }}\n"
    source += "at::Tensor f_backward(at::Tensor grad, at::Tensor x, at::Tensor total, double a) { return x; }\n"
    written = wrapped_extension("mine", {"f.cu": source + bound}).files["src/mine/__init__.py"]
    python = torch_environment(store, "2.11.0", "3.12", tmp_path / "log").interpreter
    done = subprocess.run([python, "-c", JOINED, schema], input=written, text=True, capture_output=True, check=False)
    assert done.stdout.split("\n") == ["True False", "True", ""], done.stderr


@pytest.mark.parametrize("op", ["::untested", ".recorded_untested"])
def test_a_reference_that_calls_the_op_itself_shows_nothing(found: Found, op: str) -> None:
    [outcome] = [one for one in found("gradients").of(f"sample_gradients{op}", "values") if one.case == "itself"]
    assert (outcome.verdict, "the reference calls the op itself" in outcome.reason) == (FAILED, True), outcome
