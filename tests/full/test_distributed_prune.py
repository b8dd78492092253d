"""`store prune` on the store of a worker that runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import wait_until
from tests.fixtures.distributed_farm import distributed_farm
from tests.real.commands.test_store import pruning

pytestmark = pytest.mark.slow

NAMES = ("one_ext", "two_ext")


def empty(store: Path) -> bool:
    """Whether a store has no wheel and no note of a worker any more."""
    return not any(path for folder in ("builds", "remote", "received") for path in (store / folder).glob("*"))


def test_prune_disturbs_no_running_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with distributed_farm(tmp_path, monkeypatch, "alpha", "beta") as farm:
        farm.recipes(*NAMES)
        outputs = {name: tmp_path / f"pruned-{name}" for name in ("alpha", "beta")}
        with pruning(farm.store("alpha"), outputs["alpha"]), pruning(farm.store("beta"), outputs["beta"]):
            farm.build()
            farm.build(store="other", dist="other")  # the wheels of the first run are still there
            for name in ("alpha", "beta"):
                assert len(list((farm.store(name) / "work").glob("dask-*"))) == 1
        assert [farm.compiles(name) for name in NAMES] == [1, 1]
        assert farm.wheels() == farm.wheels("other")
        assert len(farm.wheels()) == len(NAMES)
        lines = {line for output in outputs.values() for line in output.read_text().splitlines()}
        # The notes and proofs of a worker are kept while it has a task.
        assert {"kept builds", "kept logs"} <= lines
        for name in ("alpha", "beta"):
            farm.workers[name].end()
            with pruning(farm.store(name), outputs[name]):
                wait_until(lambda store=farm.store(name): empty(store), "empty")  # type: ignore[misc] # noqa: B008
