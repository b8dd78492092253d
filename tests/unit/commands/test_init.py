"""`buildfarm init`: the files of a new project, and which functions of the user become ops and joined gradients."""

import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from builder.commands.init import InitOptions, run_init, started_text
from builder.matrix.config import Selection
from builder.matrix.load import read_plan
from builder.recipes.host_functions import defined_ops, read_functions
from builder.recipes.new_extension import gradients_of
from tests.conftest import ROOT, run

CELL = InitOptions(torch=["2.11"], cuda=["13.0"], python=["3.12"])
TUTORIAL = re.compile(r'^```\w+ title="extensions/axpby/([^"]+)"\n(.*?)^```$', re.M | re.S)


def start(folder: Path, name: str | None = None) -> list[str]:
    return run_init(replace(CELL, folder=folder, name=name))[0].notes


def printed(folder: Path, code: str) -> str:
    """What `init` prints for a folder with one CUDA file."""
    (folder / "mine.cu").write_text(code)
    return started_text(folder, *run_init(replace(CELL, folder=folder)))


def test_empty_folder_gets_the_extension_of_the_tutorial(tmp_path: Path) -> None:
    """The tutorial's test compiles these files and runs their cases."""
    start(tmp_path / "new folder", "axpby")
    shown = dict(TUTORIAL.findall((ROOT / "docs" / "tutorial.md").read_text()))
    for path in ("csrc/axpby.cpp", "csrc/axpby_cuda.cu"):
        text = (tmp_path / "new folder" / path).read_text()
        assert re.sub(r"^//.*\n", "", text, flags=re.M) == shown[path], "without comments"
    assert shown["cases.py"] in (tmp_path / "new folder" / "cases.py").read_text()
    assert "register_autograd" in (tmp_path / "new folder" / "src" / "axpby" / "__init__.py").read_text()
    _, recipes, plan = read_plan(tmp_path / "new folder" / "matrix.yaml", Selection())
    assert [str(build) for build in plan.builds] == ["axpby-0.1.0-cpython-torch2.11.0-cu130-cp312"]
    assert recipes["axpby"].cases


@pytest.mark.parametrize(
    ("code", "note"),
    [
        ("at::Tensor f(at::Tensor x) { return x; }", "op torch.ops.mine.f(Tensor x) -> Tensor"),
        ("PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {}", "mine.cu has a pybind11 module, which becomes mine._C"),
        ("PYBIND11_MODULE(backend, m) {}", "mine.cu has a pybind11 module, which becomes mine.backend"),
        ("TORCH_LIBRARY(space, m) {}", "mine.cu registers ops in the namespace space"),
        ("STABLE_TORCH_LIBRARY(space, m) {}", "mine.cu registers ops in the namespace space"),
        ("// PYBIND11_MODULE(old, m)\nTORCH_LIBRARY(space, m) {}", "mine.cu registers ops in the namespace space"),
    ],
)
def test_cuda_file_of_the_user_is_wrapped_and_not_changed(tmp_path: Path, code: str, note: str) -> None:
    (tmp_path / "mine.cu").write_text(code)
    assert start(tmp_path)[0] == note
    assert (tmp_path / "mine.cu").read_text() == code
    compile((tmp_path / "src" / "mine" / "__init__.py").read_text(), "mine", "exec")
    compile((tmp_path / "setup.py").read_text(), "setup.py", "exec")
    _, _, plan = read_plan(tmp_path / "matrix.yaml", Selection())
    assert len(plan.builds) == 1


FUNCTIONS = """\
at::Tensor same(at::Tensor x, at::Tensor bias) { auto out = at::empty_like(x); return out; }
at::Tensor other(at::Tensor x, at::Tensor y) { return at::mm(x, y); }
std::vector<at::Tensor> two(at::Tensor x) { return {x, x}; }
std::vector<int64_t> sizes(at::Tensor x) { return {}; }
"""
#: In the form of vLLM's sources.
WRITES = """\
#include <torch/all.h>
template <typename scalar_t>
__global__ void norm_kernel(scalar_t* out, const scalar_t* x, const float eps) {}
__global__ void other_kernel(float* y) {}
void norm(torch::Tensor& out,      // [..., hidden]
          const torch::Tensor& x,  // [..., hidden]
          double eps) {
  norm_kernel<scalar_t><<<rows, threads, 0, stream>>>(out.data_ptr<scalar_t>(), x.data_ptr<scalar_t>(), eps);
}
"""


def imported(package: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Callable[..., object]]:
    """Run the __init__.py of a package with a stand-in for torch; return its fake kernels by the names of their ops."""
    fakes: dict[str, Callable[..., object]] = {}

    def check(condition: bool, message: Callable[[], str]) -> None:
        if not condition:
            raise RuntimeError(message())

    class Ops:
        def __getattr__(self, name: str) -> object:
            return self

        def load_library(self, path: Path) -> None:
            assert path == package / "_C.cpython-312.so"

    torch = ModuleType("torch")
    library = SimpleNamespace(register_fake=lambda op: lambda function: fakes.setdefault(op, function))
    vars(torch).update(ops=Ops(), library=library, _check=check)
    monkeypatch.setitem(sys.modules, "torch", torch)
    runpy.run_path(str(package / "__init__.py"))
    return fakes


def test_ops_that_return_nothing_get_fake_kernels_that_refuse_two_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu, cuda = SimpleNamespace(device="cpu"), SimpleNamespace(device="cuda:0")
    (tmp_path / "mine.cu").write_text(FUNCTIONS + WRITES.replace("double eps", "double eps = 1e-5"))
    start(tmp_path)
    (tmp_path / "src" / "mine" / "_C.cpython-312.so").touch()
    fakes = imported(tmp_path / "src" / "mine", monkeypatch)
    assert list(fakes) == ["mine::norm"]
    assert fakes["mine::norm"](cuda, cuda) is None
    with pytest.raises(RuntimeError, match="must be on the same device"):
        fakes["mine::norm"](cuda, cpu, 4.0)


def test_function_that_writes_to_a_tensor_becomes_an_op(tmp_path: Path) -> None:
    assert "no op for" not in printed(tmp_path, WRITES)
    binding = (tmp_path / "csrc" / "mine_ops.cu").read_text()
    assert 'm.def("norm(Tensor(a!) out, Tensor x, float eps) -> ()");' in binding
    assert 'm.impl("norm", &norm);' in binding
    assert "_kernel" not in binding
    assert "\nmemory_per_job: 3GiB" in (tmp_path / "extension.yaml").read_text()


NORM = "at::Tensor {0}(at::Tensor x, double eps) {{ {1} }}\n"
HELPERS = NORM.format("norm_cuda", "return at::empty_like(x);") + NORM.format("norm_cpu", "return x * eps;")


@pytest.mark.parametrize(
    ("code", "op", "cpu"),
    [
        (HELPERS, "norm_cuda", "norm_cpu"),
        (NORM.format("norm", "return at::empty_like(x);") + NORM.format("norm_cpu", "return x;"), "norm", "norm_cpu"),
        (
            HELPERS + NORM.format("norm", "if (x.is_cuda()) { return norm_cuda(x, eps); } return norm_cpu(x, eps);"),
            "norm",
            "norm",
        ),
        (HELPERS + NORM.format("norm", "return x.is_cuda() ? norm_cuda(x, eps) : norm_cpu(x, eps);"), "norm", "norm"),
    ],
    ids=["pair", "fallback", "branch", "choice"],
)
def test_a_function_for_the_cpu_is_the_cpu_kernel_of_its_op(tmp_path: Path, code: str, op: str, cpu: str) -> None:
    text = printed(tmp_path, code)
    assert re.findall(r"^  op (.*)", text, re.M) == [f"torch.ops.mine.{op}(Tensor x, float eps) -> Tensor"]
    assert "no kernel for the CPU" not in text
    binding = (tmp_path / "csrc" / "mine_ops.cu").read_text()
    assert f'm.impl("{op}", &{op});' in binding
    guarded = f'm.impl("{op}", [](at::Tensor x, double eps) {{\n    at::AutoDispatchBelowADInplaceOrView guard;'
    assert f"{guarded}\n    return {cpu}(x, eps);" in binding
    assert "void mine_ops_of_buildfarm() {}" in binding, "without it, nvcc gives each build other names"
    assert '["csrc/mine_ops.cu"]' in (tmp_path / "setup.py").read_text()


@pytest.mark.parametrize(
    "body",
    [
        'if (!x.is_cuda()) { throw std::runtime_error("CUDA only"); } return x.clone();',
        'if (!x.is_cuda()) AT_ERROR("CUDA only"); return x.clone();',
        'if (x.is_cuda()) { return x.clone(); } else { TORCH_CHECK(false, "CUDA only"); }',
        'TORCH_CHECK(x.is_cuda(), "CUDA only"); return x.clone();',
    ],
)
def test_a_check_of_the_device_is_no_cpu_kernel(tmp_path: Path, body: str) -> None:
    assert "norm: no kernel for the CPU" in printed(tmp_path, NORM.format("norm", body))
    assert "CPU" not in (tmp_path / "csrc" / "mine_ops.cu").read_text()


def test_a_cpu_kernel_that_is_written_later_is_registered_as_the_note_says(tmp_path: Path) -> None:
    text = printed(tmp_path, NORM.format("norm", "return at::empty_like(x);"))
    (delete,) = re.findall(r"Then `(rm [^`]+)` and run `buildfarm init` again", text)
    (tmp_path / "mine.cu").write_text(NORM.format("norm", "return x;") + NORM.format("norm_cpu", "return x;"))
    subprocess.run(["/bin/sh", "-c", delete], cwd=tmp_path, check=True)
    assert "no kernel for the CPU" not in " ".join(start(tmp_path))
    assert "return norm_cpu(x, eps);" in (tmp_path / "csrc" / "mine_ops.cu").read_text()


PAIR = """\
torch::Tensor leaky_forward(const torch::Tensor& x, float slope, int n) { return x; }
torch::Tensor leaky_backward(const torch::Tensor& grad, const torch::Tensor& x, float slope) { return grad; }
"""


def test_a_forward_is_joined_to_its_backward_and_numbers_of_other_types_are_cast(tmp_path: Path) -> None:
    printed(tmp_path, PAIR)
    package = (tmp_path / "src" / "mine" / "__init__.py").read_text()
    compile(package, "mine", "exec")
    assert "    x, slope, n = inputs\n    ctx.save_for_backward(x)\n    ctx.slope = slope\n" in package
    assert "    (x,) = ctx.saved_tensors\n" in package
    assert (
        "torch.ops.mine.leaky_backward(grads[0].contiguous(), x, ctx.slope)\n    return found, None, None\n" in package
    )
    assert '"mine::leaky_forward", _call_leaky_backward, setup_context=_keep_for_leaky_backward' in package
    binding = (tmp_path / "csrc" / "mine_ops.cu").read_text()
    assert "static T narrow_to(int64_t value, const char* name)" in binding
    assert 'm.impl("leaky_forward", [](const at::Tensor& x, double slope, int64_t n) {' in binding
    assert 'return leaky_forward(x, static_cast<float>(slope), narrow_to<int>(n, "n"));' in binding


LIBRARY = """TORCH_LIBRARY(space, m) {
  m.def("f_fwd(Tensor x, Tensor w, float eps=1e-5) -> (Tensor, Tensor)");
  m.def("f_bwd(Tensor grad_a, Tensor grad_b, Tensor x, Tensor w, "
        "float eps) -> (Tensor grad_x, Tensor grad_w)");
}"""


def test_the_schemas_of_a_library_show_how_a_pair_is_joined(tmp_path: Path) -> None:
    assert "f_fwd gets its gradient from f_bwd" in printed(tmp_path, LIBRARY)
    package = (tmp_path / "src" / "mine" / "__init__.py").read_text()
    compile(package, "mine", "exec")
    assert "    x, w, eps = inputs\n    ctx.save_for_backward(x, w)\n" in package
    assert "torch.ops.space.f_bwd(grads[0].contiguous(), grads[1].contiguous(), x, w, ctx.eps)\n" in package
    assert "    return found[0], found[1], None\n" in package


@pytest.mark.parametrize(
    "code",
    [LIBRARY + "\nTORCH_LIBRARY_IMPL(space, Autograd, m) {}", LIBRARY.replace('m.def("f_bwd', '// m.def("f_bwd')],
    ids=["autograd", "comment"],
)
def test_a_library_with_a_gradient_of_its_own_or_none_gets_no_other(tmp_path: Path, code: str) -> None:
    printed(tmp_path, code)
    assert "register_autograd" not in (tmp_path / "src" / "mine" / "__init__.py").read_text()


def test_several_files_are_one_extension(tmp_path: Path) -> None:
    """The usual layout: declarations and the module in C++, kernels in CUDA."""
    (tmp_path / "op.cpp").write_text('PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("f", &f); }')
    (tmp_path / "op_kernel.cu").write_text("at::Tensor f(at::Tensor x) { if (!x.is_cuda()) { return x; } return x; }")
    extension, _ = run_init(replace(CELL, folder=tmp_path))
    assert extension.name == "op"
    assert '["op.cpp", "op_kernel.cu"]' in (tmp_path / "setup.py").read_text()
    assert extension.gaps == []


def test_functions_of_several_files_are_declared(tmp_path: Path) -> None:
    (tmp_path / "a.cu").write_text("at::Tensor f(const torch::Tensor& x, float s = 1.f) { return x; }")
    (tmp_path / "b.cu").write_text("std::vector<at::Tensor> g(at::Tensor x) { return {x, x}; }")
    assert run_init(replace(CELL, folder=tmp_path, name="both"))[0].name == "both"
    binding = (tmp_path / "csrc" / "both_ops.cu").read_text()
    assert "at::Tensor f(const at::Tensor& x, float s);\nstd::vector<at::Tensor> g(at::Tensor x);\n\n" in binding
    assert '#include "' not in binding
    assert '["a.cu", "b.cu", "csrc/both_ops.cu"]' in (tmp_path / "setup.py").read_text()


def test_functions_that_an_op_calls_are_not_named(tmp_path: Path) -> None:
    helper = "static int threads(int n) { return n; }\n"
    call = "at::Tensor twice(const at::Tensor& x) { return x * threads(2); }\n"
    (tmp_path / "mine.cu").write_text(helper + call)
    assert not [note for note in start(tmp_path) if note.startswith("no op for")]


@pytest.mark.parametrize(
    "code",
    [None, WRITES, "PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {}", "TORCH_LIBRARY(space, m) {}"],
    ids=["small", "functions", "pybind", "library"],
)
def test_the_project_folder_does_not_hide_the_installed_wheel(tmp_path: Path, code: str | None) -> None:
    if code is not None:
        (tmp_path / "mine.cu").write_text(code)
    start(tmp_path, "mine")
    done = run(sys.executable, "-c", "import mine", cwd=tmp_path)
    assert "ModuleNotFoundError: No module named 'mine'" in done.err


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
