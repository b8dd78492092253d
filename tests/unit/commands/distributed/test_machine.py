"""What a worker says of its machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.commands.distributed.protocol import BUILDS, GPU, MEMORY, PROOF_MEMORY, PROOFS, version_resource
from builder.commands.distributed.worker import facts
from builder.commands.distributed.worker.facts import WorkerFacts, measure
from builder.images.engine import Engine
from builder.store import Store

ROWS = """\
#!/bin/sh
printf 'NVIDIA A100, 8.0, 570.1\\nNVIDIA H200, 9.0, 570.1\\nNVIDIA H200, 9.0, 570.1\\n'
"""


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on PATH."""
    folder = tmp_path / "tools"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/bin:/usr/bin")
    monkeypatch.setattr(Engine, "problem", lambda _: "there is no engine")
    monkeypatch.setattr(facts, "_lack", lambda *_, **__: "")
    return folder


def nvidia_smi(folder: Path, text: str) -> None:
    (folder / "nvidia-smi").write_text(text)
    (folder / "nvidia-smi").chmod(0o755)


def test_a_machine_without_docker_and_gpu(tools: Path, tmp_path: Path) -> None:
    nvidia_smi(tools, "#!/bin/sh\nexit 9\n")
    store = Store(tmp_path / "store")
    found = measure("plain", builds=3)
    assert (found.gpus, found.docker, found.builds) == ((), "", 3)
    assert found.cores >= 1
    builds, proofs = found.offers()
    assert (builds.kind, builds.threads, set(builds.resources)) == (BUILDS, 3, {version_resource(), BUILDS, MEMORY})
    assert (proofs.kind, proofs.threads, set(proofs.resources)) == (PROOFS, 1, {version_resource(), PROOFS, MEMORY})
    assert (builds.resources[BUILDS], proofs.resources[PROOFS]) == (3, 1)
    text = "\n".join(found.lines(store.root))
    assert "no GPU" in text
    assert "no Docker" in text


def test_a_machine_without_a_compiler_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", str(tmp_path / "c++"))
    monkeypatch.setenv("CUDA_HOME", "")
    monkeypatch.setattr(Engine, "problem", lambda _: "there is no engine")
    found = measure("bare")
    assert found.toolkits == ()
    assert found.without_compiler[0] == f"no C++ compiler: CXX is {tmp_path}/c++, which does not run"
    (line,) = [line for line in found.lines(tmp_path) if "CUDA toolkits" in line]
    assert line.endswith(f": none ({'; '.join(found.without_compiler)})")


def test_gpus_come_from_the_driver(tools: Path) -> None:
    nvidia_smi(tools, ROWS)
    found = measure("gpus")
    assert [model for model, _ in found.gpus] == ["sm_80", "sm_90", "sm_90"]
    builds, proofs = found.offers()
    assert (GPU in builds.resources, proofs.resources[GPU]) == (False, 3)


def test_what_a_compiler_and_docker_offer() -> None:
    some = WorkerFacts("w", 8, 1 << 30, 2, 4, docker="29.0", toolkits=("13.0",))
    builds, proofs = (offer.resources for offer in some.offers())
    assert {"docker", "local-cu130", "any-cu130", "any-cu128"} <= set(builds)
    assert "local-cu128" not in builds
    assert set(proofs) == {version_resource(), PROOFS, MEMORY, "docker"}


@pytest.mark.parametrize(("gib", "for_builds"), [(24, 22), (4, 2), (3, 3)])
def test_builds_leave_memory_for_a_proof_where_there_is_enough(gib: int, for_builds: int) -> None:
    assert PROOF_MEMORY == 2 << 30
    builds, proofs = WorkerFacts("w", 8, gib << 30, 2, 4).offers()
    assert (builds.resources[MEMORY], proofs.resources[MEMORY]) == (for_builds << 30, gib << 30)
