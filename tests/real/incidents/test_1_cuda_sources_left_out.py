"""Incident 1: a library without its CUDA sources fails with `undefined symbol` at import."""

import json
from collections.abc import Callable

import pytest

from builder.wheelfile.facts import read_facts
from tests.conftest import Ran
from tests.real.incidents.conftest import Build, Built, says

pytestmark = [pytest.mark.network, pytest.mark.slow]

PAGE = "undefined-symbol.md"
READABLE = "toy_attn_cuda_forward(at::Tensor const&, at::Tensor const&)"
MANGLED = "_Z21toy_attn_cuda_forwardRKN2at6TensorES2_"


@pytest.fixture(scope="module")
def broken(build: Build) -> Built:
    """The same source, built by a recipe that does not say that setup.py asks for a GPU."""
    return build({"extension.yaml": ("assume_cuda: true ", "# no assume_cuda: ")})


def test_build_refuses_the_wheel(broken: Built) -> None:
    assert broken.ran.code == 1, broken.ran.all
    assert not list(broken.dist.glob("*.whl"))
    says(
        broken.ran.all,
        "FAILED payload no GPU code in _C.cpython-312-x86_64-linux-gnu.so: csrc/forward.cu was never compiled (is it "
        "in `sources` of setup.py?); setup.py calls torch.cuda.is_available(), which is False during a build without a "
        "GPU: set `assume_cuda: true` in the recipe",
        PAGE,
    )


def test_the_import_of_the_wheel_fails_as_users_saw_it(broken: Built) -> None:
    says(broken.ran.all, "import of toy_attn failed: ImportError:", PAGE)
    says(broken.ran.all, f"undefined symbol: {MANGLED}", PAGE)


def test_verify_names_the_symbol_and_the_cause(broken: Built, verify: Callable[..., Ran]) -> None:
    done = verify(broken.wheel)
    assert done.code == 1, done.all
    says(
        done.out,
        f"undefined symbol {READABLE}: no library of torch, CUDA or the system defines the symbol, and the wheel "
        "contains no GPU code: the build left out the CUDA sources; setup.py probably called "
        "torch.cuda.is_available() on a machine without a GPU; build with FORCE_CUDA=1, or set `assume_cuda: true` in "
        "the recipe",
        PAGE,
    )


def test_the_build_depends_on_no_gpu(sound: Built, verify: Callable[..., Ran]) -> None:
    """The sound twin: `assume_cuda` answers the question of setup.py, and nvcc compiles the CUDA source."""
    (library,) = read_facts(sound.wheel).libraries
    assert library.sass == ("sm_80",)
    (entry,) = json.loads((sound.dist / "report.json").read_text())["builds"]
    failed = [proof for proof in entry["proofs"] if proof["verdict"] == "failed"]
    assert failed == []
    verdicts = {proof["check"]: proof["verdict"] for proof in entry["proofs"]}
    assert {verdicts[check] for check in ("payload", "linkage", "import", "loaded", "dispatch")} == {"passed"}
    verify(sound.wheel).ok()
