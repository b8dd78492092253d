"""Which forward and backward are joined, and how the backward gets its arguments."""

from __future__ import annotations

import pytest

from builder.recipes.host_functions import defined_ops, read_functions
from builder.recipes.new_extension import gradients_of

FORWARD = "at::Tensor leaky_forward(at::Tensor x, at::Tensor bias, double slope, int64_t mode) { return x; }\n"


def pair(forward: str, backward: str) -> tuple[list[tuple[str, ...]], list[str]]:
    joined, left = gradients_of(read_functions(forward + backward)[0])
    return [(each.forward.name, each.backward.name) for each in joined], left


def test_a_backward_gets_what_its_parameters_name() -> None:
    backward = (
        "std::vector<at::Tensor> leaky_backward(at::Tensor grad_out, at::Tensor bias, at::Tensor out, double slope)"
        " { return {out, bias}; }"
    )
    ((joined,), left) = gradients_of(read_functions(FORWARD + backward)[0])
    assert left == []
    assert joined.arguments == ("grads[0].contiguous()", "bias", "output", "ctx.slope")
    assert (joined.tensors, joined.numbers) == (("bias", "output"), ("slope",))
    assert joined.returned == (0, 1, None, None)


def test_a_tensor_of_integers_gets_no_gradient() -> None:
    forward = "at::Tensor gather(at::Tensor x, at::Tensor index) { return x; }"
    backward = "at::Tensor gather_grad(at::Tensor grad, at::Tensor x, at::Tensor index) { return x; }"
    ((joined,), _) = gradients_of(read_functions(forward + backward)[0])
    assert joined.returned == (0, None)


def test_each_of_several_results_has_a_gradient() -> None:
    forward = "std::tuple<at::Tensor, at::Tensor> f_fwd(at::Tensor x) { return g(x); }"
    backward = "at::Tensor f_bwd(at::Tensor grad_a, at::Tensor grad_b, at::Tensor x) { return x; }"
    ((joined,), _) = gradients_of(read_functions(forward + backward)[0])
    assert joined.arguments == ("grads[0].contiguous()", "grads[1].contiguous()", "x")


@pytest.mark.parametrize(
    ("backward", "reason"),
    [
        ("at::Tensor leaky_backward(at::Tensor grad, at::Tensor bias) { return bias; }", "it returns 1 tensors, and"),
        ("std::vector<at::Tensor> leaky_backward(at::Tensor grad) { return all; }", "how many tensors the two return"),
        ("at::Tensor leaky_backward(at::Tensor grad, at::Tensor saved) { return grad; }", "its parameter saved is"),
        ("at::Tensor leaky_backward(at::Tensor bias) { return bias; }", "it takes 0 gradients of 1 results"),
        ("void leaky_backward(at::Tensor& grad) { }", "how many tensors the two return"),
    ],
)
def test_a_pair_that_its_signatures_do_not_join_is_left_to_a_person(backward: str, reason: str) -> None:
    joined, (left,) = pair(FORWARD, backward)
    assert joined == []
    assert left.startswith("leaky_forward has no gradient: leaky_backward seems to compute it, but ")
    assert reason in left
    assert "join them with torch.library.register_autograd" in left


def test_parameters_given_by_name_are_left_to_a_person() -> None:
    ops = defined_ops('m.def("f(Tensor x, *, float eps) -> Tensor"); m.def("f_grad(Tensor grad, Tensor x) -> Tensor");')
    joined, (left,) = gradients_of(ops)
    assert joined == []
    assert "torch gives the parameters after `*` to another function" in left


def test_a_list_as_result_and_defaults_do_not_go_together() -> None:
    forward = "std::vector<at::Tensor> f_fwd(at::Tensor x{}) {{ return {{x, x}}; }}"
    backward = "at::Tensor f_bwd(at::Tensor grad_a, at::Tensor grad_b, at::Tensor x) { return x; }"
    assert pair(forward.format(", double s"), backward) == ([("f_fwd", "f_bwd")], [])
    joined, (left,) = pair(forward.format(", double s = 1.0"), backward)
    assert joined == []
    assert "torch joins no op that returns a list and has defaults (return a std::tuple)" in left


def test_functions_without_a_partner_are_no_pair() -> None:
    assert pair(FORWARD, "at::Tensor other_backward(at::Tensor grad) { return grad; }") == ([], [])
