"""The index server in a process of its own, and what installers need to use it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import ROOT

#: Runs `buildfarm serve` with short time limits, so that a test need not wait for them.
IMPATIENT = """
from builder.publish.server import protocol, uploads
protocol.HEADER_SECONDS = protocol.STALL_SECONDS = uploads._GRACE = 1.5
from builder.__main__ import main
main()
"""


@dataclass
class Server:
    """A running server: its folder, its URL and its process."""

    root: Path
    url: str
    process: subprocess.Popen[str]
    log: Path

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal; return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(30)

    def with_token(self, token: str) -> str:
        """The URL with a token."""
        return self.url.replace("://", f"://__token__:{token}@")


@contextlib.contextmanager
def running(root: Path, *options: str, program: str = "from builder.__main__ import main; main()") -> Iterator[Server]:
    """Serve a folder while the body runs."""
    log = root.parent / f"{root.name}.log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", program, "serve", str(root), "--port", "0", *options],
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
    try:
        assert process.stderr
        lines = []
        for line in process.stderr:
            lines.append(line)
            if found := re.search(r"on (https?://[^/]+)", line):
                yield Server(root, found[1], process, log)
                return
        raise AssertionError("".join(lines))
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        if process.stderr:
            process.stderr.close()


def clean_environment(folder: Path, **more: str) -> Mapping[str, str]:
    """The environment without the settings that this machine has for installers."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PIP_", "UV_", "TWINE_")) and not name.lower().endswith("_proxy")
    }
    own = {
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_INPUT": "1",
        "UV_NO_CONFIG": "1",
        "UV_CACHE_DIR": str(folder / "uv-cache"),
        "HOME": str(folder),
        "TWINE_NON_INTERACTIVE": "1",
        "PYTHON_KEYRING_BACKEND": "keyring.backends.null.Keyring",
    }
    return {**kept, **own, **more}


def wait_for(condition: object, seconds: float = 60) -> None:
    """Wait until a function returns something true."""
    assert callable(condition)
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, condition
        time.sleep(0.005)
