"""What a worker keeps from `store prune`."""

from __future__ import annotations

import os
import threading
from multiprocessing import Pipe
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from distributed import Worker

from builder.commands.distributed.protocol import WorkerAnswer
from builder.commands.distributed.worker import child
from builder.commands.distributed.worker.facts import WorkerFacts
from builder.commands.distributed.worker.service import Service
from builder.commands.store import prune_store as prune
from builder.store import Store

WHEEL = f"received/{'a' * 64}"


@pytest.fixture
def plugin(tmp_path: Path) -> Service:
    """The plugin of a worker with a wheel, a note and a log in its store, all from long ago."""
    made = Service(tmp_path / "store", WorkerFacts("machine", cores=1, memory=2**30, builds=1, jobs=1))
    made.setup(cast("Worker", SimpleNamespace(startup_information={})))
    for name in (f"{WHEEL}/demo.whl", "remote/task.json", "logs/demo.log"):
        path = tmp_path / "store" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
        os.utime(path, (0, 0))
    return made


def targets(plugin: Service) -> set[str]:
    return {item.target for item in prune(Store(plugin._root), 0).deleted}


def test_no_wheel_that_a_task_used_is_deleted_while_the_worker_runs(plugin: Service) -> None:
    plugin._keep(WHEEL)
    assert targets(plugin) == {"remote/task.json", "logs/demo.log"}, "the process of a task keeps them while it runs"
    assert Store(plugin._root).last_use(WHEEL).year > 2000
    plugin._store = Store(plugin._root)  # the marks end with the worker
    assert targets(plugin) == {WHEEL}


def test_a_process_ends_after_the_worker_has_marked_what_it_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "run", lambda _work, _report: WorkerAnswer(reused=True))
    ours, theirs = Pipe()
    thread = threading.Thread(target=child.serve, args=(theirs,))
    thread.start()
    ours.send("work")
    assert ours.recv() == WorkerAnswer(reused=True)
    thread.join(0.2)
    assert thread.is_alive()
    ours.close()
    thread.join()
