"""Signatures of host functions as ops, which forward and backward are joined, and why others become none."""

import pytest

from builder.recipes.host_functions import defined_ops, read_functions
from builder.recipes.new_extension import gradients_of


def test_functions_of_tensors() -> None:
    code = (
        "torch::Tensor f(const torch::Tensor& x, int64_t n, double a = 1.0) { if (n) { return x; } return x; }\n"
        "namespace {\nat::Tensor g(at::Tensor in, bool b) { return in; }\n}\n"
        "__global__ void kernel(float* x) {}\n__device__ float helper(float x) { return x; }\n"
        "struct S { int method(int x) { return x; } };\nTORCH_LIBRARY(name, m) {}\n"
        "// at::Tensor h(at::Tensor x) {}\n"
    )
    functions, refused = read_functions(code)
    assert [each.schema for each in functions] == [
        "f(Tensor x, int n, float a=1.0) -> Tensor",
        "g(Tensor in_, bool b) -> Tensor",
    ]
    assert refused == []


@pytest.mark.parametrize(
    ("code", "schema"),
    [
        (
            "void f(torch::Tensor& out, const torch::Tensor& x, at::Tensor w, double eps = 1e-6)",
            "f(Tensor(a!) out, Tensor x, Tensor w, float eps=1e-06) -> ()",
        ),
        (
            'extern "C" void f(Tensor &in,  // [n]\n at::Tensor x, at::Tensor & b, bool c)',
            "f(Tensor(a!) in_, Tensor x, Tensor(b!) b, bool c) -> ()",
        ),
        ("at::Tensor f(at::Tensor& x)", "f(Tensor x) -> Tensor"),
        (
            "at::Tensor f(at::Tensor x, int64_t n = -1, bool b = true, double c = 1e-5f)",
            "f(Tensor x, int n=-1, bool b=True, float c=1e-05) -> Tensor",
        ),
        ("at::Tensor f(at::Tensor x, int64_t n = 2, double eps = EPS)", "f(Tensor x, int n, float eps) -> Tensor"),
    ],
)
def test_function_that_returns_nothing_writes_to_its_tensor_references(code: str, schema: str) -> None:
    (function,), refused = read_functions(f"{code} {{ k<<<1, 2>>>(); }}")
    assert (function.schema, refused) == (schema, [])


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("static at::Tensor f(at::Tensor x) {}", "it is static; remove `static` to make it an op"),
        (
            "at::Tensor f(at::Tensor x, char a) {}",
            "the parameter `char a` has no equivalent in the schema of an op; an op takes `torch::Tensor`, `double`,",
        ),
        ("at::Tensor f(at::Tensor x, int& n) {}", "the parameter `int& n` has no equivalent"),
        (
            "void f(const at::Tensor& x, at::Tensor y) {}",
            "it returns `void` and has no parameter `Tensor&`; use `Tensor&` for each tensor that it writes to",
        ),
        ("void f(float* x) {}", "the parameter `float* x` has no equivalent in the schema of an op"),
        ("static void f(at::Tensor& x) {}", "it is static; remove `static` to make it an op"),
        ("static inline int f(int n) {}", "it returns `int`; only"),
        ("std::vector<int> f(at::Tensor x) {}", "it returns `std::vector<int>`; only"),
        ("template <typename T> at::Tensor f(at::Tensor x) {}", "it is a template"),
        ("at::Tensor f(int64_t n) {}", "it has no tensor as parameter"),
        ("namespace a::b { at::Tensor f(at::Tensor x) {} }", "it is in the namespace a::b"),
    ],
)
def test_host_function_that_becomes_no_op_is_named_with_the_reason(code: str, reason: str) -> None:
    functions, (refused,) = read_functions(code)
    assert functions == []
    assert refused.startswith(f"f: {reason}")


@pytest.mark.parametrize(
    ("returned", "result"),
    [
        ("std::vector<torch::Tensor>", "Tensor[]"),
        ("std::tuple<at::Tensor, at::Tensor>", "(Tensor, Tensor)"),
        ("static inline std::tuple< Tensor,Tensor,Tensor >", ""),
    ],
)
def test_function_that_returns_several_tensors(returned: str, result: str) -> None:
    functions, _ = read_functions(f"{returned} f(at::Tensor x) {{ return {{x, x}}; }}")
    assert [each.schema for each in functions] == ([f"f(Tensor x) -> {result}"] if result else [])


def test_numbers_of_other_types_are_cast_from_those_of_the_op() -> None:
    code = "at::Tensor f(Tensor x, float a, const int& n, std::size_t m, bool b, unsigned int k = 3, long l = 1) {}"
    ((function,), refused) = read_functions(code)
    assert refused == []
    assert function.schema == "f(Tensor x, float a, int n, int m, bool b, int k=3, int l=1) -> Tensor"
    assert function.op_parameters == ("at::Tensor x, double a, int64_t n, int64_t m, bool b, int64_t k, long l")
    assert function.call == (
        'f(x, static_cast<float>(a), narrow_to<int>(n, "n"), narrow_to<size_t>(m, "m"), b,'
        ' narrow_to<unsigned int>(k, "k"), l)'
    )


@pytest.mark.parametrize(
    ("returned", "body", "count"),
    [
        ("std::vector<at::Tensor>", "if (n) { return {x, at::stack({x, y}, 0)}; } return {x, y};", 2),
        ("std::vector<at::Tensor>", "if (n) { return {x}; } return {x, y};", 0),
        ("std::vector<at::Tensor>", "return results;", 0),
        ("std::tuple<at::Tensor, at::Tensor>", "return f(x);", 2),
        ("at::Tensor", "return x;", 1),
        ("void", "", 0),
    ],
)
def test_the_number_of_results_is_read_if_each_return_shows_it(returned: str, body: str, count: int) -> None:
    ((function,), _) = read_functions(f"{returned} f(at::Tensor& x, at::Tensor y, int64_t n) {{ {body} }}")
    assert function.count == count


def test_a_launcher_is_no_op_of_its_own() -> None:
    launcher = "void launch(at::Tensor& out, at::Tensor x) { k<<<1, 2>>>(); }\n"
    caller = "at::Tensor f(at::Tensor x) { auto out = at::empty_like(x); launch(out, x); return out; }\n"
    functions, refused = read_functions(launcher + caller)
    assert [each.name for each in functions] == ["f"]
    assert refused == ["launch: it returns `void`, and f calls it"]
    recursive = "void f(at::Tensor& out, at::Tensor x) { f(out, x); }"
    assert [each.name for each in read_functions(recursive)[0]] == ["f"]


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
    assert (list(joined.tensors), joined.numbers) == (["bias", "output"], ("slope",))
    assert joined.returned == (0, 1, None, None)


def test_a_tensor_of_integers_gets_no_gradient() -> None:
    forward = "at::Tensor gather(at::Tensor x, at::Tensor index) { return x; }"
    backward = "at::Tensor gather_grad(at::Tensor grad, at::Tensor x, at::Tensor index) { return x; }"
    ((joined,), _) = gradients_of(read_functions(forward + backward)[0])
    assert joined.returned == (0, None)


@pytest.mark.parametrize(
    ("returns", "code"),
    [
        ("std::vector<at::Tensor>", "{out, total}"),
        ("std::tuple<at::Tensor, at::Tensor>", "std::make_tuple(out, total)"),
    ],
)
def test_a_result_that_only_the_backward_takes_has_no_gradient(returns: str, code: str) -> None:
    forward = f"{returns} f_forward(at::Tensor x) {{ g([&] {{ return; }}); return {code}; }}"
    backward = "at::Tensor f_backward(at::Tensor grad, at::Tensor x, at::Tensor out, at::Tensor total) { return x; }"
    ((joined,), left) = gradients_of(read_functions(forward + backward)[0])
    assert left == []
    assert joined.arguments == ("grads[0].contiguous()", "x", "out", "total")
    assert joined.tensors == {"x": "x", "out": "output[0]", "total": "output[1]"}
    assert joined.without == (1,)


def test_a_gradient_belongs_to_the_result_that_its_name_ends_with() -> None:
    forward = "std::vector<at::Tensor> f(at::Tensor x) { return {index, out}; }"
    backward = "at::Tensor f_grad(at::Tensor grad_out, at::Tensor index) { return index; }"
    ((joined,), _) = gradients_of(read_functions(forward + backward)[0])
    assert (joined.arguments, joined.without) == (("grads[1].contiguous()", "index"), (0,))


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
