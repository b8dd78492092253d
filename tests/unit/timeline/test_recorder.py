"""The recorder: programs of the run count, with the programs that they start; other programs count for the machine."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from builder import process
from builder import timeline as module
from builder.matrix.axes import Cell
from builder.progress.display import StageTime
from builder.proof import Check, Proof, Verdict
from builder.timeline import Recorder, Sample, Timeline, Use, thinned
from tests.conftest import PATIENCE, owned, wait_until

#: Starts a program without environment variables. It allocates 64 MiB, uses 1.5 s of processor time, and waits. At the
#: end, writes how many seconds both have used.
PROGRAM = """
import os, subprocess, sys, time
child = "import time\\nheld = bytearray(64 << 20)\\nwhile time.process_time() < 1.5: pass"
child += "\\nprint(1, flush=True); input()"
pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE)
running = subprocess.Popen([sys.executable, "-c", child], env={}, **pipes)
running.stdout.readline()
open("ready", "w").close()
while not os.path.exists("end"): time.sleep(0.01)
running.communicate(b"\\n")
with open("seconds", "w") as stream: print(sum(os.times()[:4]), file=stream)
os.rename("seconds", "ended")
while not os.path.exists("leave"): time.sleep(0.01)
"""


def test_memory_and_processor_time_of_a_program_and_its_children(tmp_path: Path) -> None:
    owner = uuid.uuid4().hex
    recorder = Recorder(f"{owner}/")
    recorder.name("digest", "tiny-1.0")
    argv = [sys.executable, "-c", PROGRAM]
    thread = threading.Thread(
        target=process.run,
        args=(argv,),
        kwargs={
            "log": tmp_path / "log",
            "owner": f"{owner}/digest",
            "cwd": tmp_path,
            "limits": process.Limits(seconds=600),  # also when this test fails
        },
    )
    thread.start()
    wait_until((tmp_path / "ready").exists, "the work of the child")
    recorder.sample()
    (tmp_path / "end").touch()
    wait_until((tmp_path / "ended").exists, "the end of the child")
    recorder.sample()
    (tmp_path / "leave").touch()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    recorder.sample()
    timeline = recorder.timeline([])
    assert set(timeline.uses) == {"tiny-1.0"}
    use = timeline.uses["tiny-1.0"]
    assert 64 << 20 <= use.memory <= 256 << 20
    most = float((tmp_path / "ended").read_text()) + 0.8  # the process that keeps the program counts too
    assert 1.5 <= use.cpu_seconds <= most, "the seconds of the child count once, and are kept when it ends"
    first, _, last = timeline.samples
    assert first.memory >= 64 << 20
    assert first.machine_memory >= first.memory
    assert last.memory == 0
    assert timeline.cores >= 1
    adapter = TypeAdapter(Timeline)
    assert adapter.validate_json(adapter.dump_json(timeline)) == timeline


def test_programs_of_others_are_not_counted() -> None:
    recorder, owner = Recorder(f"{uuid.uuid4().hex}/"), f"{uuid.uuid4().hex}/x"
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env={"BUILDFARM_OWNER": owner})
    try:
        wait_until(lambda: owned(owner) == [other.pid], "a program with its owner")
        recorder.sample()
    finally:
        other.communicate(b"\n")
    (sample,) = recorder.timeline([]).samples
    assert (sample.cores, sample.memory) == (0, 0)
    assert sample.machine_memory > 0


def test_a_long_run_has_a_limited_number_of_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "INTERVAL", 0.005)
    monkeypatch.setattr(module, "MOST_SAMPLES", 8)
    recorder, sample, taken = Recorder("store/"), Recorder.sample, []

    def count(recorder: Recorder) -> None:
        sample(recorder)
        taken.append(1)

    monkeypatch.setattr(Recorder, "sample", count)
    with recorder.recording():
        wait_until(lambda: len(taken) >= 18, "18 samples")
    samples = recorder.timeline([]).samples
    assert 4 <= len(samples) < 8
    assert [sample.at for sample in samples] == sorted(sample.at for sample in samples)


def test_two_samples_become_one() -> None:
    pair = [Sample(1, 2.0, 10, 2.0, 30), Sample(2, 1.0, 20, 4.0, 20), Sample(3, 9.0, 9, 9.0, 9)]
    assert thinned(pair) == [Sample(2, 1.5, 20, 3.0, 30)]


def test_cells_are_named_by_the_proofs_and_stages_count_from_the_start() -> None:
    recorder = Recorder("store/")
    cell = Cell.parse("torch2.11.0-cu130-cp312")
    recorder.name_cells("tiny", [Proof("ab" * 32, cell, Check.IMPORT, Verdict.PASSED)])
    recorder._uses[f"prove-{'ab' * 8}-{cell}"] = Use(5, 1.0)
    start = time.monotonic()
    timeline = recorder.timeline([StageTime("tiny", "compile", start + 1, start + 3)])
    assert timeline.uses == {f"tiny in {cell}": Use(5, 1.0)}
    (stage,) = timeline.stages
    assert (round(stage.start), round(stage.end)) == (1, 3)
