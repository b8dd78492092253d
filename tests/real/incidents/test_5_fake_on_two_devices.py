"""Incident 5: an op whose fake kernel meets tensors on two devices."""

import json
from pathlib import Path

import pytest

from builder.check import Check
from builder.hashing import sha256_of
from builder.store import Store
from tests.conftest import Farm, Ran, run
from tests.fixtures.gate_env import make_environment
from tests.real.incidents.conftest import HERE, PYTHON, TORCH, Built, derived, project, says, smoked

pytestmark = [pytest.mark.network, pytest.mark.slow]

PAGE = "fake-tensor-devices.md"
OTHER = HERE / "toy_attn" / "other"

#: Calls the op as torch.export does: with a value on CUDA, and a weight on the CPU. Needs no GPU.
CALL = """
import torch, toy_attn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
mode = FakeTensorMode()
value, weight = (FakeTensor(mode, torch.empty(2, device="meta"), torch.device(name)) for name in ("cuda:0", "cpu"))
with mode:
    torch.ops.toy_attn.meta_key(value, weight)
"""


@pytest.fixture(scope="module")
def wheel(sound: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sound wheel with three more ops, two of them with a defect."""
    folder = tmp_path_factory.mktemp("fakes") / "wheel"
    return derived(sound.wheel, folder, {"toy_attn/__init__.py": (OTHER / "three_fakes.py").read_bytes()})


def test_the_call_fails_as_users_saw_it(wheel: Path, store: Path, tmp_path: Path) -> None:
    python = make_environment(store, tmp_path / "env", TORCH, PYTHON, [wheel])
    done = run(python, "-c", CALL)
    assert done.code != 0
    says(
        done.err,
        "RuntimeError: Unhandled FakeTensor Device Propagation for toy_attn.meta_key.default, found two different "
        "devices cuda:0, cpu",
        PAGE,
    )


@pytest.fixture(scope="module")
def judged(wheel: Path, farm: Farm, store: Path, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """One `buildfarm smoke` of the four ops."""
    folder = tmp_path_factory.mktemp("fakes-project")
    matrix = project(folder, "toy_attn")
    (folder / "toy_attn" / "cases.py").write_bytes((OTHER / "three_fakes_cases.py").read_bytes())
    return smoked(farm, store, wheel, matrix)


def test_smoke_finds_both_fake_kernels_without_a_gpu(judged: Ran) -> None:
    done = judged
    assert done.code == 1, done.all
    says(
        done.out,
        "devices toy_attn::meta_key (plain): with 'weight' on the CPU, which the case allows, the op raises "
        "RuntimeError: Unhandled FakeTensor Device Propagation for toy_attn.meta_key.default, found two different "
        "devices cuda:0, cpu",
        PAGE,
    )
    says(
        done.out,
        "devices toy_attn::unchecked (plain): the fake kernel accepts 'value' on the CPU although the other tensors "
        "are on CUDA",
        PAGE,
    )


@pytest.mark.usefixtures("judged")
def test_the_sound_ops_pass(wheel: Path, store: Path, sound: Built) -> None:
    """`forward` refuses tensors on two devices. `mixed` accepts a weight on the CPU, and its fake kernel does too."""
    proofs = Store(store).proofs(sha256_of(wheel))
    outcomes = [one for proof in proofs if proof.check is Check.DEVICES for one in proof.evidence["outcomes"]]
    verdicts = {one["op"]: one["verdict"] for one in outcomes if one["case"] == "plain"}
    wrong = {"toy_attn::meta_key": "failed", "toy_attn::unchecked": "failed"}
    assert verdicts == {"toy_attn::forward": "passed", "toy_attn::mixed": "passed", **wrong}
    (entry,) = json.loads((sound.dist / "report.json").read_text())["builds"]
    assert {proof["verdict"] for proof in entry["proofs"] if proof["check"] == "devices"} == {"passed"}
