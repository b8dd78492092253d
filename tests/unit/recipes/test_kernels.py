"""Signatures of kernels and functions as ops."""

from __future__ import annotations

import pytest

from builder.recipes.kernels import read_functions, read_kernels


@pytest.mark.parametrize(
    ("code", "schema"),
    [
        (
            "__global__ void saxpy(int n, float a, const float* __restrict__ x, float *y) {",
            "saxpy(int n, float a, Tensor x, Tensor(a!) y) -> ()",
        ),
        (
            "template <typename T> __global__ void __launch_bounds__(9) k(T* a, const T* b, T c, bool d, double* e) {",
            "k(Tensor(a!) a, Tensor b, float c, bool d, Tensor(b!) e) -> ()",
        ),
        (
            "__global__ void k(float const *x, // in\n /* out */ int64_t* y, size_t n)\n{",
            "k(Tensor x, Tensor(a!) y, int n) -> ()",
        ),
    ],
)
def test_kernel_becomes_an_op(code: str, schema: str) -> None:
    (kernel,), refused = read_kernels(code)
    assert (kernel.schema, refused) == (schema, [])


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("__global__ void k(Options o, float* y) {", "k: the parameter `Options o` has no equivalent in torch"),
        ("__global__ void k(float** y) {", "k: the parameter `float** y` has no equivalent in torch"),
        ("__global__ void k(const float* x) {", "k: no parameter is a pointer that the kernel can write"),
    ],
)
def test_kernel_that_cannot_be_launched(code: str, reason: str) -> None:
    assert read_kernels(code) == ([], [reason])


def test_declarations_and_comments_are_no_kernels() -> None:
    assert read_kernels("__global__ void k(float* y);\n// __global__ void l(float* y) {\n") == ([], [])


def test_functions_of_tensors() -> None:
    code = (
        "torch::Tensor f(const torch::Tensor& x, int64_t n, double a = 1.0) {\n"
        "at::Tensor g(at::Tensor x, bool b) {\nstatic at::Tensor h(at::Tensor x) {\n"
        "at::Tensor i(at::Tensor x, float a) {\nvoid j(at::Tensor x) {\n"
    )
    assert [each.schema for each in read_functions(code)] == [
        "f(Tensor x, int n, float a) -> Tensor",
        "g(Tensor x, bool b) -> Tensor",
    ]
