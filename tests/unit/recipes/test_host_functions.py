"""Signatures of host functions as ops, and the reasons why the others become none."""

from __future__ import annotations

import pytest

from builder.recipes.host_functions import read_functions

#: A fake kernel for a result with contiguous strides.
NEW = "x.new_empty(x.shape)"


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
    ("code", "schema", "written"),
    [
        (
            "void f(torch::Tensor& out, const torch::Tensor& x, at::Tensor w, double eps = 1e-6)",
            "f(Tensor(a!) out, Tensor x, Tensor w, float eps=1e-06) -> ()",
            ("out",),
        ),
        (
            'extern "C" void f(Tensor &in,  // [n]\n at::Tensor x, at::Tensor & b, bool c)',
            "f(Tensor(a!) in_, Tensor x, Tensor(b!) b, bool c) -> ()",
            ("in_", "b"),
        ),
        ("at::Tensor f(at::Tensor& x)", "f(Tensor x) -> Tensor", ()),
    ],
)
def test_function_that_returns_nothing_writes_to_its_tensor_references(
    code: str, schema: str, written: tuple[str, ...]
) -> None:
    (function,), refused = read_functions(f"{code} {{ k<<<1, 2>>>(); }}")
    assert (function.schema, function.written, refused) == (schema, written, [])


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
    assert function.call(function.arguments) == (
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


def test_the_second_function_of_a_name_becomes_no_op() -> None:
    functions, refused = read_functions("at::Tensor f(at::Tensor x) {}\nat::Tensor f(at::Tensor x, bool b) {}\n")
    assert ([each.schema for each in functions], refused) == (
        ["f(Tensor x) -> Tensor"],
        ["f: a function before it has the same name"],
    )


@pytest.mark.parametrize(
    ("body", "result"),
    [
        ("auto out = at::empty_like(x); run<<<1, 1>>>(out); return out;", "torch.empty_like(x)"),
        ("if (!n) { throw 1; } return torch::zeros_like(x);", "torch.empty_like(x)"),
        ("auto xc = x.contiguous(), yc = y.contiguous(); auto out = at::empty_like(xc); return out;", NEW),
        ("at::Tensor out = at::empty(x.sizes(), x.options()); return out;", NEW),
        ("x = x.contiguous(); auto out = x.clone(); return out;", NEW),
        ("x = x.sum(0); auto out = at::empty_like(x); return out;", ""),
        ("auto out = at::empty_like(x); out = out.sum(); return out;", ""),
        ("auto out = at::empty_like(x); if (n) return x; return out;", ""),
        ("auto out = at::empty_like(x, at::kInt); return out;", ""),
        ("auto out = at::empty({x.size(0)}, x.options()); return out;", ""),
        ("return x + y;", ""),
    ],
)
def test_the_result_of_a_function_is_known_if_it_is_made_like_a_parameter(body: str, result: str) -> None:
    ((function,), _) = read_functions(f"at::Tensor f(at::Tensor x, at::Tensor y, int64_t n) {{ {body} }}")
    assert function.result == result
