"""How many tasks a client submits at the same time, and which of them first."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from builder.commands.distributed.cluster import Need, Window
from builder.commands.distributed.protocol import BUILDS, PROOFS


def workers(*offers: Mapping[str, float]) -> dict[str, dict[str, Any]]:
    return {f"worker-{number}": {"resources": offer} for number, offer in enumerate(offers)}


class Tasks:
    """Tasks that hold their place until they are ended."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self._running: dict[str, asyncio.Task[None]] = {}
        self.admitted: list[str] = []

    async def start(self, name: str, need: Need) -> None:
        async def hold() -> None:
            async with self._window.place(need):
                self.admitted.append(name)
                await asyncio.Event().wait()

        self._running[name] = asyncio.create_task(hold())
        await self.settle()

    async def end(self, *names: str) -> None:
        for name in names:
            self._running.pop(name).cancel()
        await self.settle()

    @staticmethod
    async def settle() -> None:
        for _ in range(5):
            await asyncio.sleep(0)


def build(priority: float = 0, **more: float) -> Need:
    return Need({BUILDS: 1, **more}, priority=priority)


@pytest.fixture(autouse=True)
def _twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice as many tasks as can run."""
    monkeypatch.setattr("builder.commands.distributed.cluster.AHEAD", 2)


def test_twice_as_many_as_can_run_then_the_highest_priority_first() -> None:
    async def scenario() -> list[str]:
        window = Window()
        window.look(workers({BUILDS: 1}, {BUILDS: 1}))
        tasks = Tasks(window)
        for name, priority in (("a", 1), ("b", 2), ("c", 3), ("d", 3), ("short", 4), ("long", 9), ("given up", 20)):
            await tasks.start(name, build(priority))
        assert tasks.admitted == ["a", "b", "c", "d"]
        await tasks.end("given up")
        await tasks.end("a")
        await tasks.end("b")
        return tasks.admitted

    assert asyncio.run(scenario()) == ["a", "b", "c", "d", "long", "short"]


def test_each_kind_of_need_has_its_own_limit() -> None:
    async def scenario() -> list[str]:
        window = Window()
        window.look(workers({BUILDS: 4, PROOFS: 1}, {BUILDS: 1, PROOFS: 1, "gpu-sm_90": 1}))
        tasks = Tasks(window)
        for name in ("first", "second", "third"):
            await tasks.start(name, Need({PROOFS: 1, "gpu-sm_90": 1}))
        await tasks.start("proof", Need({PROOFS: 1}))
        await tasks.start("build", build())
        return tasks.admitted

    assert asyncio.run(scenario()) == ["first", "second", "proof", "build"]


def test_tasks_that_no_worker_can_run_are_all_submitted() -> None:
    """The cluster ends each of them after the same time."""

    async def scenario() -> list[str]:
        window = Window()
        window.look(workers({BUILDS: 1, "docker": 1}))
        tasks = Tasks(window)
        for name in ("a", "b", "c", "d"):
            await tasks.start(name, build(docker=1))
        assert tasks.admitted == ["a", "b"]
        window.look(workers({BUILDS: 1}))
        await tasks.settle()
        return tasks.admitted

    assert asyncio.run(scenario()) == ["a", "b", "c", "d"]


def test_a_new_worker_gets_tasks() -> None:
    async def scenario() -> list[str]:
        window = Window()
        window.look(workers({BUILDS: 1}))
        tasks = Tasks(window)
        for name in ("a", "b", "c", "d", "e"):
            await tasks.start(name, build())
        assert tasks.admitted == ["a", "b"]
        window.look(workers({BUILDS: 1}, {BUILDS: 1}))
        await tasks.settle()
        return tasks.admitted

    assert asyncio.run(scenario()) == ["a", "b", "c", "d"]


def test_workers_with_docker_are_left_to_the_tasks_that_need_it_while_these_wait() -> None:
    async def scenario() -> list[str]:
        window, farm = Window(), workers({PROOFS: 1, "docker": 1}, {PROOFS: 1})
        window.look(farm)
        tasks = Tasks(window)
        for name in ("in docker 1", "in docker 2", "in docker 3"):
            await tasks.start(name, Need({PROOFS: 1, "docker": 1}))
        window.look(farm)
        for name in ("a", "b", "c"):
            await tasks.start(name, Need({PROOFS: 1}))
        assert tasks.admitted == ["in docker 1", "in docker 2", "a", "b"]
        await tasks.end("in docker 1")
        window.look(farm)
        await tasks.settle()
        assert tasks.admitted[4:] == ["in docker 3", "c"], "no task that needs docker waits any more"
        return tasks.admitted

    asyncio.run(scenario())


def test_where_all_workers_have_docker_tasks_without_it_are_submitted_too() -> None:
    async def scenario() -> list[str]:
        window, farm = Window(), workers({PROOFS: 1, "docker": 1})
        window.look(farm)
        tasks = Tasks(window)
        for name in ("in docker 1", "in docker 2", "in docker 3"):
            await tasks.start(name, Need({PROOFS: 1, "docker": 1}))
        window.look(farm)
        await tasks.start("a", Need({PROOFS: 1}))
        return tasks.admitted

    assert asyncio.run(scenario()) == ["in docker 1", "in docker 2", "a"]
