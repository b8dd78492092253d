"""`smoke --scheduler`: wheels of any origin are tested on workers, and the report says which worker did what."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from builder.proof import proofs_path
from builder.store import Store
from tests.conftest import BUILDFARM, Ran
from tests.conftest import run as run_program
from tests.fixtures.distributed_farm import DistributedFarm, distributed_farm
from tests.unit.loopback import PYTHON

CELL = f"torch2.11.0-cu130-{PYTHON.tag}"
#: One GPU, for a worker that looks at its machine.
NVIDIA_SMI = """\
#!/bin/sh
case "$1" in
*name,compute_cap,driver_version*) echo "NVIDIA H200, 9.0, 570.1" ;;
*) exit 1 ;;
esac
"""


def run(farm: DistributedFarm, *words: str | Path) -> Ran:
    """Run a command with the client's store."""
    return run_program(BUILDFARM, *words, "--store", farm.store("client"), cwd=farm.project.root)


def test_wheels_are_tested_on_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "nvidia-smi").write_text(NVIDIA_SMI)
    (tools / "nvidia-smi").chmod(0o755)
    with distributed_farm(tmp_path, monkeypatch) as farm:
        farm.start_worker("plain")
        with monkeypatch.context() as context:
            context.setenv("PATH", f"{tools}:{os.environ['PATH']}")
            farm.start_worker("with-gpu")
        farm.recipes("one", "two")
        farm.build()
        dist = farm.folder / "dist"
        beside = {wheel: proofs_path(wheel).read_bytes() for wheel in dist.glob("*.whl")}
        assert len(beside) == 2
        for wheel in beside:  # proofs of `build` that say nothing about this cell
            entries = json.loads(proofs_path(wheel).read_text())
            proofs_path(wheel).write_text(json.dumps([entry for entry in entries if entry["cell"] is None]))
        foreign = tmp_path / "elsewhere" / sorted(beside)[0].name
        foreign.parent.mkdir()
        foreign.write_bytes(sorted(beside)[0].read_bytes())

        done = run(farm, "smoke", "--scheduler", farm.address, "--prove-on", "sm_80,sm_90", "--dist", dist, "--json")
        assert done.code == 0, done.all
        results = json.loads(done.out)
        assert [result["cell"] for result in results] == [CELL] * 2
        for result in results:
            proofs = {proof["check"]: proof for proof in result["proofs"]}
            assert proofs["values"]["verdict"] == "passed"
            models = proofs["gpu-values"]["evidence"]["gpu_models"]
            assert models["sm_80"]["reason"].startswith("no worker can run checks for sm_80: plain and with-gpu have")
            assert "sm_90" in models
            saved = Store(farm.store("client")).proofs(proofs["values"]["wheel"])
            assert "values" in {str(proof.check) for proof in saved}
        for wheel in beside:
            entries = json.loads(proofs_path(wheel).read_text())
            assert CELL in {entry["cell"] for entry in entries}
        report = run(farm, "report", "--json")
        stages = json.loads(report.out)["runs"][0]["timeline"]["stages"]
        assert {stage["machine"] for stage in stages if stage["stage"] != "waiting"} == {"with-gpu"}

        done = run(farm, "smoke", foreign, "--scheduler", farm.address)
        assert done.code == 0, done.all
        assert re.search(rf"^{re.escape(foreign.name)}\n.*\n{CELL} .* \d+ passed, ", done.out, re.MULTILINE)
        assert ") on plain" in done.err or ") on with-gpu" in done.err
        versions = ("--torch", "2.11", "--cuda", "13.0", "--python", str(PYTHON))
        store = ("--store", farm.store("client"), "--json")
        argv = (BUILDFARM, "smoke", foreign, *versions, "--scheduler", farm.address, *store)
        done = run_program(*argv, cwd=foreign.parent)  # without matrix.yaml
        assert done.code == 0, done.all
        assert f"there is no matrix.yaml; the cell is torch 2.11.0, CUDA 13.0, Python {PYTHON}" in done.err
        [result] = json.loads(done.out)
        assert "passed" in {proof["verdict"] for proof in result["proofs"] if proof["check"] == "import"}

        page = farm.folder / "report.html"
        assert run(farm, "report", "--out", page).code == 0
        assert '<th scope="col">worker</th>' in page.read_text()
