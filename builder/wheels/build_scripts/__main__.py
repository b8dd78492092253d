"""Runs one script: `python -I -S -B FOLDER JOB COMMAND [ARGUMENT...]`. FOLDER is that of this file, JOB its `job_file`.

-I and -S keep variables and packages of the build away from this Python. -B, because nobody could delete bytecode that
the container's user leaves in the job's folder.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[3]))  # the folder that holds `builder`

from builder.wheels.build_scripts import install
from builder.wheels.build_scripts.job_file import read_cache, read_paths
from builder.wheels.sccache.launchers import server


def main(job: str, command: str, *arguments: str) -> int:
    """Run a command; returns its exit status."""
    file = Path(job)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # in order with what programs print
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # for this process and all programs below it
    if command == "with-compiler-cache":
        return server.run_behind_cache(read_cache(file), arguments)
    try:
        if command == "before-build":
            install.prepare(read_paths(file), read_cache(file))
        elif command == "install-packages":
            install.install(read_paths(file), read_cache(file))
        elif command == "after-build":
            install.finish(read_paths(file), read_cache(file), *map(Path, arguments))
        else:
            sys.exit(f"error: unknown command {command}")
    except subprocess.CalledProcessError as error:  # the program has printed the reason
        return error.returncode if error.returncode > 0 else 128 - error.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
