"""Files that `init` and `cases` write for real ops: the first become a wheel, and the gate runs the drafts."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from builder.commands.cases import cases_text
from builder.errors import Exit
from builder.gate.draft.result import CALLED, CUDA_ONLY, NOT_CALLED, Drafts, OpDraft
from builder.gate.outcome import NOT_RUN, PASSED, Spec
from tests.conftest import Farm, lacking, run, wheel_of
from tests.fixtures.gate_env import pack_gate, run_gate

pytestmark = [pytest.mark.network, pytest.mark.slow]

SPEC = Spec(name="sample_correct", imports=["sample_correct"], jobs=2, checks=["ops", "values", "repeat"])


def in_python(interpreter: Path, code: str, folder: Path | None = None) -> str:
    """What code prints that can import `builder` and the modules of a folder, and sees no GPU."""
    path = [str(Path(__file__).parents[2]), *([str(folder)] if folder else [])]
    start = f"import sys; sys.path[:0] = {path!r}\nimport json, torch\nfrom dataclasses import asdict\n"
    done = run(interpreter, "-c", start + code, env={"CUDA_VISIBLE_DEVICES": ""}).ok()
    return done.out


def drafted(interpreter: Path, folder: Path, cases: Path | None = None) -> dict[str, OpDraft]:
    gate = pack_gate(interpreter, folder, SPEC, cases)
    done = run(*gate.command, "--draft", cwd=gate.folder, env=gate.env).ok()
    assert re.search(r"^gate: 0 of \d+ ops$", done.all, re.MULTILINE), "the display shows how many ops were tried"
    gate.nothing_left()
    found = Drafts.from_json(json.loads((folder / "answer.json").read_bytes()))
    assert found.error == ""
    return {one.op: one for one in found.drafts}


def test_the_gate_runs_the_draft_and_reports_the_gaps_as_not_run(
    gate_python: Callable[[str], Path], tmp_path: Path
) -> None:
    python = gate_python("2.11.0")
    by_op = drafted(python, tmp_path / "drafts")
    drafts = list(by_op.values())
    assert by_op["sample_correct::multiply"].arguments == ["make.randn(5, 3, grad=True)"] * 2
    assert by_op["sample_correct::multiply"].results == ["float32 (5, 3)"]
    assert by_op["sample_correct.multiply"].state == CALLED
    assert by_op["sample_correct::line"].arguments[1:] == ["0.5", "2.0"]
    left = [(draft.op, draft.reason) for draft in drafts if draft.state != CALLED]
    assert len(left) * 3 <= len(drafts), left
    assert all(reason for _, reason in left)

    cases = tmp_path / "cases.py"
    cases.write_text(cases_text(Drafts({}, drafts=drafts), name="sample_correct", cell="a cell"))
    result = run_gate(pack_gate(python, tmp_path / "gate", SPEC, cases))
    # `noise` draws random numbers, which only its author can say.
    assert {one.op for one in result.failures} <= {"sample_correct::noise"}, result.failure_text()
    [values] = result.of("sample_correct::multiply", "values")
    assert (values.verdict, "neither a reference nor an invariant" in values.reason) == (NOT_RUN, True)
    [repeat] = result.of("sample_correct::multiply", "repeat")
    assert repeat.verdict == PASSED


def test_only_ops_without_a_case_are_drafted(gate_python: Callable[[str], Path], tmp_path: Path) -> None:
    cases = tmp_path / "cases.py"
    cases.write_text(
        "from builder.gate import Case\n"
        "CASES = [Case('sample_correct::multiply', lambda make: (make.randn(2), make.randn(2)), devices=['cuda'])]\n"
        "NOT_CLAIMED = {'sample_correct.multiply': 'the op behind it has a case'}\n"
    )
    found = drafted(gate_python("2.11.0"), tmp_path / "run", cases)
    assert not {"sample_correct::multiply", "sample_correct.multiply"} & {*found}


def drafted_here(interpreter: Path, schema: str, kernel: str, device: str = "CPU", more: str = "") -> OpDraft:
    """The draft of an op `drafted::NAME` that the drafting process defines itself, and `more` before it."""
    name = schema.partition("(")[0]
    code = (
        "from builder.gate.draft.draft import draft_op\n"
        "from builder.gate.checks.compile_export import warm_up\n"
        "from builder.gate.processes.extension_process import PRELOAD, import_all\n"
        "import_all(PRELOAD), warm_up()\n"
        "library = torch.library.Library('drafted', 'DEF')\n"
        f"{more}\n"
        f"library.define({schema!r})\n"
        f"library.impl({name!r}, {kernel}, {device!r})\n"
        f"print(json.dumps(asdict(draft_op('drafted::{name}')[0])))"
    )
    return OpDraft(**json.loads(in_python(interpreter, code)))


def sizes_of(draft: OpDraft) -> list[list[int]]:
    """The sizes of each tensor among the arguments."""
    made = [one for one in draft.arguments if "make." in one]
    return [[int(size) for size in re.findall(r"\d+", one)] for one in made]


def test_a_message_that_asks_for_cuda(gate_python: Callable[[str], Path]) -> None:
    asking = ["xs must be located in the CUDA", "x must be placed on the GPU", "x must be a CUDA tensor"]
    asking += ["CUDA tensors only", "it only supports CUDA", "Not implement on cpu"]
    code = f"from builder.gate.draft.search import only_cuda\nprint([only_cuda(one) for one in {asking}])\n"
    code += "print([only_cuda(one) for one in ('xs must be a Float tensor', 'x must be on the CPU')])"
    assert in_python(gate_python("2.11.0"), code).splitlines() == [
        "[True, True, True, True, True, True]",
        "[False, False]",
    ]


@pytest.mark.parametrize(
    ("schema", "kernel", "returned"),
    [
        ("f(Tensor x) -> Tensor", "lambda x: x.exp()", "torch.empty_like(x)"),
        ("f(Tensor x) -> Tensor", "lambda x: x.exp().contiguous()", "x.new_empty(x.shape)"),
        ("f(Tensor x, Tensor y) -> Tensor[]", "lambda x, y: [x * y, x.reshape(-1, x.size(-1)).sum(0)]",
         "[torch.empty_like(x), x.new_empty((x.shape[-1],))]"),
        ("f(Tensor x, Tensor y) -> (Tensor, Tensor)", "lambda x, y: (x.mm(y), x.mm(y).argmax(1))",
         "x.new_empty((x.shape[0], y.shape[1])), x.new_empty((x.shape[0],), dtype=torch.int64)"),
        ("f(Tensor x, int count=3) -> Tensor", "lambda x, count=3: x.new_ones(count, x.shape[1] + 1)",
         "x.new_empty((count, x.shape[1] + 1))"),
        ("f(Tensor x) -> Tensor", "lambda x: x[x > 0]", ""),
        ("f(Tensor x) -> Tensor", "lambda x: x.repeat(2, 1)", ""),
    ],
    ids=["strides", "contiguous", "ranks", "several", "number", "contents", "multiple"],
)  # fmt: skip
def test_the_fake_kernel_follows_from_the_shapes_of_several_calls(
    gate_python: Callable[[str], Path], schema: str, kernel: str, returned: str
) -> None:
    draft = drafted_here(gate_python("2.11.0"), schema, kernel)
    assert draft.state == CALLED, draft.reason
    if not returned:
        assert draft.fake == ""
        return
    assert f"    return {returned}\n" in draft.fake
    assert draft.fake.startswith('@torch.library.register_fake("drafted::f")\ndef _fake_f(')
    text = cases_text(Drafts({}, drafts=[draft]), name="drafted", cell="a cell")
    assert '        not_claimed=untraced("no fake kernel' in text


@pytest.mark.parametrize(("device", "state"), [("CPU", CALLED), ("CUDA", CUDA_ONLY)])
@pytest.mark.parametrize("default", ["", "=1.0"])
def test_a_scale_is_neither_0_nor_1(gate_python: Callable[[str], Path], device: str, state: str, default: str) -> None:
    """An op in place that does nothing would pass with a scale of 1."""
    schema = f"scale_(Tensor(a!) x, float scale{default}, int steps=1) -> Tensor(a!)"
    draft = drafted_here(gate_python("2.11.0"), schema, "lambda x, scale=1.0, steps=1: x.mul_(scale)", device)
    assert (draft.state, draft.arguments[1:]) == (state, ["0.5"])


@pytest.mark.parametrize(("device", "state"), [("CPU", CALLED), ("CUDA", CUDA_ONLY)])
def test_a_gradient_has_the_shape_of_the_first_tensor(
    gate_python: Callable[[str], Path], device: str, state: str
) -> None:
    """A kernel of CUDA would read past the end of a smaller one."""
    kernel = "lambda grad, x: grad * x"
    schema = "swish_backward(Tensor grad, Tensor input) -> Tensor"
    draft = drafted_here(gate_python("2.11.0"), schema, kernel, device)
    gradient, first = sizes_of(draft)
    assert (draft.state, gradient) == (state, first), draft.reason


def test_a_function_of_a_compiled_module_is_not_traced_also_without_a_cpu_kernel(
    gate_python: Callable[[str], Path], tmp_path: Path
) -> None:
    """torch.compile cannot trace it: on a GPU machine, the checks of tracing would fail for it."""
    (tmp_path / "functions.py").write_text(
        "from torch import Tensor\ndef add(x: Tensor) -> Tensor:\n    raise NotImplementedError('no CPU kernel')\n"
    )
    code = (
        "from builder.gate.draft import draft, refine\n"
        "plain = draft.draft_op('functions.add')[0]\n"
        "refine.BuiltinFunctionType = type(lambda: 0)\n"  # as if the function were one of a compiled module
        "print(json.dumps([asdict(one) for one in (plain, draft.draft_op('functions.add')[0])]))"
    )
    found = json.loads(in_python(gate_python("2.11.0"), code, tmp_path))
    plain, compiled = [OpDraft(**one) for one in found]
    assert (plain.state, plain.untraced) == (CUDA_ONLY, "")
    assert "torch cannot trace a function of a compiled module" in compiled.untraced
    text = cases_text(Drafts({}, drafts=[compiled]), name="functions", cell="a cell")
    assert "def untraced(reason: str)" in text
    assert "not_claimed=untraced(" in text


@pytest.mark.parametrize(
    ("schema", "kernel", "state", "says"),
    [
        ("f(Tensor x) -> ()", "lambda x: None", CUDA_ONLY, "changes no argument and returns no tensor"),
        ("f(Tensor x) -> int", "lambda x: 1", CUDA_ONLY, "changes no argument and returns no tensor"),
        ("f(Tensor x) -> int", "lambda x: x.dim()", CALLED, "results=['int']"),
        ("f(Tensor(a!) x) -> ()", "lambda x: x.add_(1) and None", CALLED, "written=['x']"),
        ("f(Tensor x) -> Tensor", "lambda x: only(x, x.is_contiguous(), 'contiguous')", CALLED, "contiguous_only=True"),
        ("f(Tensor x) -> Tensor", "lambda x: only(x, x.shape[1:] == (4, 2), '')", CALLED, "contiguous_only=False"),
        ("f(Tensor x, Tensor x_lens) -> Tensor", "lambda x, n: only(x, n.min() > 0, '')", CALLED, "torch.ones("),
        ("f(Tensor x) -> Tensor", "lambda x: only(x, x.dim() == 3, 'NVIDIA driver')", CALLED, "make.randn(5, 3, 6"),
    ],
)  # fmt: skip
def test_what_a_call_shows(gate_python: Callable[[str], Path], schema: str, kernel: str, state: str, says: str) -> None:
    draft = drafted_here(
        gate_python("2.11.0"),
        schema,
        kernel,
        more="def only(x, right, text):\n    assert right, text\n    return x.clone()",
    )
    assert (draft.state, says in str(draft)) == (state, True), draft


#: A package with a class whose call reaches two ops. The second op accepts nothing but what the first call gives it.
PAIRS = """
import torch
from torch import Tensor, nn

library = torch.library.Library("pairs", "DEF")
library.define("nearest(Tensor a, Tensor b) -> Tensor")
library.define("nearest_backward(Tensor grad, Tensor index, int code) -> Tensor")
library.define("version(int code) -> bool")


def _nearest(a, b):
    (count, _, size), (other_count, _, other_size) = a.shape, b.shape
    if (count, size) != (other_count, other_size):
        raise RuntimeError("other sizes")
    return torch.cdist(a, b).argmin(-1)


def _backward(grad, index, code):
    if code != 4711 or grad.shape[:2] != index.shape:
        raise RuntimeError("Trying to create tensor with negative dimension -1: [4, 4, -1]")
    return grad * 2


library.impl("nearest", _nearest, "CPU")
library.impl("nearest_backward", _backward, "CPU")
library.impl("version", lambda code: False, "CompositeExplicitAutograd")


class _Gap(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        index = torch.ops.pairs.nearest(a, b)
        ctx.save_for_backward(index)
        return (a - b.gather(1, index[..., None].expand(a.shape))) ** 2

    @staticmethod
    def backward(ctx, grad):
        return torch.ops.pairs.nearest_backward(grad, *ctx.saved_tensors, 4711), None


class Gap(nn.Module):
    def __init__(self, factor: float, bias: bool = False):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(()) * factor)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return _Gap.apply(a, b) * self.weight


class Other(nn.Module):
    def forward(self, a: Tensor) -> Tensor:
        return a + 1
"""


def test_a_class_is_drafted_and_its_call_shows_the_arguments_of_the_ops_inside(
    gate_python: Callable[[str], Path], tmp_path: Path
) -> None:
    (tmp_path / "pairs.py").write_text(PAIRS)
    code = (
        "from pathlib import Path\n"
        "from builder.gate.draft.draft import draft\n"
        "from builder.gate.outcome import Spec\n"
        "print(json.dumps(asdict(draft(Path('none'), Spec('pairs', ['pairs'], jobs=2, has_cases=False)))))"
    )
    drafts = Drafts.from_json(json.loads(in_python(gate_python("2.11.0"), code, tmp_path)))
    by_op = {one.op: one for one in drafts.drafts}
    assert list(by_op) == ["pairs::nearest", "pairs::nearest_backward", "pairs::version", "pairs.Gap(2.0)"]
    gap = by_op["pairs.Gap(2.0)"]
    assert (gap.state, gap.required, gap.dtypes) == (CALLED, False, ["float64"])
    (count, rows, size), (other_count, other_rows, other_size) = sizes_of(gap)
    assert (count, size) == (other_count, other_size)
    assert len({count, rows, size, other_rows}) == 4, "a case with equal sizes does not show that two are mixed up"
    assert "grad=True" in gap.arguments[0]
    backward = by_op["pairs::nearest_backward"]
    assert (backward.state, backward.arguments[2]) == (CALLED, "4711"), backward.reason
    assert backward.arguments[1].startswith("make.integers([["), "the indices of the good call"
    version = by_op["pairs::version"]
    assert (version.state, "takes and returns no tensor" in version.reason) == (NOT_CALLED, True)
    assert '"pairs::version": "the function takes' in cases_text(drafts, name="pairs", cell="a cell")


#: Names of `_C.twice` as packages have them: a function of the same name, and `apply` as a global.
NAMES = """
import types
from math import gcd as _gcd
import torch
from torch import Tensor, nn

_C = types.SimpleNamespace(twice=lambda x: 2 * x)


def imported(x: Tensor) -> int:
    return _gcd(4, 2)


def twice(x: Tensor) -> Tensor:
    return _C.twice(x)


def unrelated(x: Tensor) -> Tensor:
    return x


class _Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return twice(x)


_twice = _Twice.apply


class Twice(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return _twice(x)


class Unrelated(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return unrelated(x)
"""


def test_what_calls_an_op_under_another_name_is_found(gate_python: Callable[[str], Path], tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package/__init__.py").write_text("from . import names\n")
    (tmp_path / "package/names.py").write_text(NAMES)
    code = "import package\nfrom builder.gate.draft.draft import callables\n"
    code += "print(json.dumps(callables(['package'], ['package._C.twice', 'math.gcd'])))"
    found = json.loads(in_python(gate_python("2.11.0"), code, tmp_path))
    assert found == ["package.names.Twice", "package.names.imported", "package.names.twice"]


def test_the_gate_calls_a_class_in_the_dtype_of_its_tensors(gate_python: Callable[[str], Path], tmp_path: Path) -> None:
    (tmp_path / "pairs.py").write_text(PAIRS)
    code = (
        "from builder.gate.case import Case, Make\n"
        "from builder.gate.context import CaseError, Context, resolve\n"
        "from builder.gate.outcome import Spec\n"
        "case = Case('pairs.Gap(2.0, bias=True)', lambda make: (make.randn(2, 3, 4), make.randn(2, 5, 4)))\n"
        "context = Context(Spec('', []), [case])\n"
        "for dtype in (torch.float32, torch.float64):\n"
        "    results = [context.call(case, context.arguments(case, dtype)) for _ in range(2)]\n"
        "    print(results[0].dtype, torch.equal(*results))\n"
        "for name in ('pairs.Gap(torch.ones(2))', 'pairs._nearest()'):\n"
        "    try:\n"
        "        resolve(name)\n"
        "    except CaseError as error:\n"
        "        print(error)\n"
    )
    assert in_python(gate_python("2.11.0"), code, tmp_path).splitlines() == [
        "torch.float32 True",
        "torch.float64 True",
        "pairs.Gap(torch.ones(2)) is not the path of a class with plain values as arguments",
        "pairs._nearest is no class of torch.nn.Module: write its path without arguments",
    ]


#: Reads as many numbers of the first tensor as the second one has.
UNCHECKED = (
    "lambda a, b: torch.frombuffer((__import__('ctypes').c_float * b.numel()).from_address(a.data_ptr()),"
    " dtype=torch.float32).view(b.shape) + b"
)


@pytest.mark.parametrize(("kernel", "differ"), [(UNCHECKED, False), ("lambda a, b: a.sum() + b", True)])
def test_sizes_differ_only_where_the_op_does_not_read_past_the_end(
    gate_python: Callable[[str], Path], kernel: str, differ: bool
) -> None:
    """An op that compares no sizes accepts a tensor that is too large, and crashes with one that is too small."""
    draft = drafted_here(gate_python("2.11.0"), "add(Tensor a, Tensor b) -> Tensor", kernel)
    first, second = sizes_of(draft)
    assert (draft.state, first != second) == (CALLED, differ), draft.reason


KERNELS = """\
#include <ATen/Dispatch.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/types.h>

__global__ void saxpy(int n, float a, const float* __restrict__ x, float* y) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = a * x[i] + y[i];
}

void add_scaled(torch::Tensor& y, const torch::Tensor& x, double a) {
  const int n = static_cast<int>(y.numel());
  saxpy<<<(n + 255) / 256, 256, 0, c10::cuda::getCurrentCUDAStream()>>>(
      n, static_cast<float>(a), x.const_data_ptr<float>(), y.mutable_data_ptr<float>());
}

template <typename T>
__global__ void scale(T* out, const T* x, T a, size_t n) {
  size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
  if (i < n) out[i] = a * x[i];
}

std::tuple<torch::Tensor, torch::Tensor> both(const torch::Tensor& x) { return {x.clone(), at::zeros_like(x)}; }

std::vector<torch::Tensor> listed(const torch::Tensor& x) { return {x.clone()}; }

torch::Tensor scale_by(const torch::Tensor& x, double a) {
  torch::Tensor out = torch::empty_like(x);
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "scale", [&] {
    scale<scalar_t><<<(x.numel() + 255) / 256, 256, 0, c10::cuda::getCurrentCUDAStream()>>>(
        out.mutable_data_ptr<scalar_t>(), x.const_data_ptr<scalar_t>(), static_cast<scalar_t>(a), x.numel());
  });
  return out;
}
"""


def test_one_cuda_file_becomes_a_wheel(farm: Farm, store: Path, tmp_path: Path) -> None:
    (tmp_path / "kernels.cu").write_text(KERNELS)
    started = farm("init", "--torch", "2.11", "--cuda", "13.0", "--python", "3.12", cwd=tmp_path).ok()
    assert "torch.ops.kernels.scale_by(Tensor x, float a) -> Tensor" in started.out
    assert "torch.ops.kernels.both(Tensor x) -> (Tensor, Tensor)" in started.out
    assert "torch.ops.kernels.listed(Tensor x) -> Tensor[]" in started.out
    built = farm("build", "--executor", "local", "--arch", "9.0", "--store", store, cwd=tmp_path)
    if built.code == Exit.TOOL_MISSING:
        lacking(built.err)
    assert built.code == 0, built.all
    (entry,) = json.loads((tmp_path / "dist" / "report.json").read_text())["builds"]
    verdicts = {proof["check"]: proof["verdict"] for proof in entry["proofs"]}
    assert [verdicts[check] for check in ("device-code", "linkage", "import")] == ["passed"] * 3
    assert verdicts["ops"] == "not run"  # there are no cases
    assert "kernels::add_scaled" in json.dumps(entry["proofs"])
    assert "kernels::scale_by" in json.dumps(entry["proofs"])
    assert wheel_of(tmp_path / "dist").name.startswith("kernels-0.1.0+cu130.torch2.11-cp312-")
