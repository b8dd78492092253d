"""sccache's server: started before a build, stopped after it. A build goes on without the cache when it fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

from builder.wheels.sccache.launchers.environment import CacheSettings
from builder.wheels.sccache.launchers.layout import lay_out
from builder.wheels.sccache.launchers.remote import redis_problem, without_secrets
from builder.wheels.sccache.launchers.self_test import SelfTestError, cache_problem


def run_behind_cache(settings: CacheSettings, argv: Sequence[str]) -> int:
    """Run a command with the compiler cache; returns its status. Ends by the same signal as the command.

    The command does not get the variables of a shared cache: only sccache's server uses them.
    """
    start(settings)
    try:
        status = subprocess.run(argv, check=False, env=settings.without_shared()).returncode
    finally:
        stop(settings)
    if status < 0:
        with suppress(OSError):  # SIGKILL has no handler
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status


def start(settings: CacheSettings) -> None:
    """Lay out the launchers and start the server; raises SystemExit when the launchers cannot be made.

    Without a server the launchers call the compilers directly: a cache that does not work costs time and not the build.
    """
    try:
        lay_out(settings)
        _make_folders(settings)
    except OSError as error:
        sys.exit(f"error: cannot create the folder of compiler wrappers for sccache: {error}")
    if reason := settings.disabled or settings.refused:
        settings.refusal_file.write_text(f"{reason}\n", encoding="utf-8")
    if settings.disabled:
        return
    if reason := _start_with_shared(settings) or _self_test(settings):
        settings.refusal_file.write_text(f"{reason}\n", encoding="utf-8")
        _stop_server(settings)
        sys.stdout.write(f"note: the compiler cache is not used: {reason}\n")
        sys.stdout.flush()
    else:  # the self-test compiled too
        _call_server(settings, "--zero-stats")


def stop(settings: CacheSettings) -> None:
    """Save the server's statistics and end it, if it runs."""
    if settings.socket.is_socket():
        argv = [settings.sccache, "--show-stats", "--stats-format=json"]
        with suppress(OSError), (settings.statistics_dir / "stats.json").open("wb") as stream:
            subprocess.run(argv, stdout=stream, stderr=subprocess.DEVNULL, check=False)
        _stop_server(settings)


def _make_folders(settings: CacheSettings) -> None:
    settings.statistics_dir.mkdir(parents=True, exist_ok=True)
    with suppress(PermissionError):  # made by the host's user, and open to all
        settings.statistics_dir.chmod(0o777)  # buildfarm deletes it, and may be a different user


def _start_with_shared(settings: CacheSettings) -> str:
    """Start the server, without the shared cache if that cannot be used; returns why it did not start, or empty."""
    if settings.shared and settings.reads:
        reason = redis_problem(os.environ) or _start_server(settings, os.environ)
        if not reason:
            return ""
        reason = without_secrets(reason, os.environ)
        settings.unshared_file.write_text(f"{reason}\n", encoding="utf-8")
        sys.stdout.write(f"note: the shared compiler cache is not used: {reason}\n")
        sys.stdout.flush()
    return _start_server(settings, settings.without_shared())


def _start_server(settings: CacheSettings, environment: Mapping[str, str]) -> str:
    """Start the server; returns why it did not start, or empty.

    It stays in this session and process group, so that it ends with them. It holds none of this process's streams.
    """
    log = settings.statistics_dir / "start.log"
    variables = {
        **environment,
        "SCCACHE_DIRECT": "true",
        "SCCACHE_NO_DAEMON": "1",
        "SCCACHE_ERROR_LOG": str(settings.statistics_dir / "server.log"),
    }
    argv = [settings.sccache, "--start-server"]
    try:
        settings.cache_dir.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as stream:
            started = subprocess.run(
                argv, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, env=variables, check=False
            )
    except OSError as error:
        return str(error)
    if started.returncode == 0:
        return ""
    text = log.read_text(encoding="utf-8", errors="replace").strip()
    return text.rpartition("\n")[2] or f"sccache ended with status {started.returncode}"


def _self_test(settings: CacheSettings) -> str:
    """Why the cache must not be used, or empty. A cache that is not read needs no test."""
    try:
        return cache_problem(settings) if settings.reads else ""
    except (OSError, SelfTestError) as error:
        return f"its self-test failed: {error}"


def _stop_server(settings: CacheSettings) -> None:
    _call_server(settings, "--stop-server")
    settings.socket.unlink(missing_ok=True)


def _call_server(settings: CacheSettings, option: str) -> None:
    with suppress(OSError):
        argv = [settings.sccache, option]
        subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
