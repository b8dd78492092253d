"""Processes that a test kills at random moments."""

from __future__ import annotations

import multiprocessing
import os
import random
from collections.abc import Callable
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from typing import Any


def seeded() -> random.Random:
    """Random moments, which BUILDFARM_SEED repeats."""
    number = int(os.environ.get("BUILDFARM_SEED", random.randrange(10**6)))
    print(f"BUILDFARM_SEED={number} repeats this run")
    return random.Random(number)


def context_of(module: str) -> ForkServerContext:
    """A context whose processes have imported the module of the test."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([module])
    return context


def begin(context: ForkServerContext, target: Callable[..., None], *args: Any) -> BaseProcess:
    """Start a process and wait until it sends a message; `target` gets the arguments and the connection for it."""
    here, there = context.Pipe()
    process = context.Process(target=target, args=(*args, there))
    process.start()
    there.close()  # if the process ends early, `recv` raises an error
    here.recv()
    return process
