"""A real S3 server in a process of its own, and a web server that offers its bucket to installers."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from builder.wheels.toolchain.uv import find_uv

KEYS = {"AWS_ACCESS_KEY_ID": "farm", "AWS_SECRET_ACCESS_KEY": "farm-secret", "AWS_DEFAULT_REGION": "us-east-1"}
#: The endpoint of a different S3 server for a run of the tests by hand; it accepts KEYS.
OTHER_SERVER = "BUILDFARM_TEST_S3"
#: moto has an environment of its own: its boto3 and the botocore of s3fs seldom agree, and pip searches for minutes.
MOTO = [str(find_uv()), "run", "--no-project", "--isolated", "--python", sys.executable, "--with", "moto[s3,server]>=5"]
SERVER = Path(__file__).with_name("s3_server.py")


@dataclass(frozen=True)
class ObjectStore:
    """A running S3 server.

    Attributes:
        endpoint: its URL.
        website: URL of a web server that answers `FOLDER/` with `FOLDER/index.html`, and reads without keys.
        log: file with a line for each request: method and path.

    """

    endpoint: str
    website: str
    log: Path

    @property
    def env(self) -> Mapping[str, str]:
        """What a client needs in its environment."""
        return {**KEYS, "AWS_ENDPOINT_URL": self.endpoint}

    def requests(self) -> list[str]:
        """The requests so far; empty for a server that was started by hand."""
        return self.log.read_text().splitlines() if self.log.is_file() else []


@contextlib.contextmanager
def running(folder: Path, *options: str) -> Iterator[ObjectStore]:
    """Serve S3 while the body runs. With `--unconditional`, the server ignores If-None-Match."""
    log = folder / "requests.log"
    endpoint = os.environ.get(OTHER_SERVER, "")
    words = [*MOTO, str(SERVER), str(log), *options, *([endpoint] if endpoint else [])]
    with (folder / "s3.log").open("wb") as output:
        process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=output, text=True, env={**os.environ, **KEYS}, start_new_session=True
        )
    try:
        assert process.stdout
        ports = process.stdout.readline().split()
        assert ports, (folder / "s3.log").read_text()
        yield ObjectStore(endpoint or f"http://127.0.0.1:{ports[0]}", f"http://127.0.0.1:{ports[1]}", log)
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # uv and the server
        process.wait()
        if process.stdout:
            process.stdout.close()
