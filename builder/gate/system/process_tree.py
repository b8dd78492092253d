"""The processes below a process: which they are, and how to end them all. As a script: the keeper of one program.

The keeper starts a program and ends with it, after it has ended every process that the program left behind. The kernel
gives the keeper each descendant whose parent has ended (PR_SET_CHILD_SUBREAPER), so neither a second fork nor a new
session nor a cleared environment hides a process from it. A keeper without children has no descendants.

`builder.process` starts a keeper for each program. The keeper must start fast: it imports no module of Python that
takes long (`signal`, `json`, `pathlib`), and nothing of `builder`. Linux only.
"""

from __future__ import annotations

import os
import time

SIGKILL, SIGPIPE, SIGSTOP, SIGXFSZ = 9, 13, 19, 25

#: Seconds for killed processes to disappear. A process that waits for a broken disk or driver cannot be killed.
END_SECONDS = 30.0
#: Seconds between two looks at the limits of a program.
_TICK = 0.5
PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 4, 36


def parents() -> dict[int, int]:
    """Return the parent of every process of this machine that this process can see."""
    found = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 (pathlib takes 8 ms to import)
        if name.isdigit() and (fields := stat_fields(int(name))):
            found[int(name)] = int(fields[1])
    return found


def stat_fields(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on: state, parent, group, session; [] if it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123
            # The name of the program, in parentheses, may contain any character.
            return file.read().rpartition(b")")[2].decode().split()
    except OSError:
        return []


def is_stopped(pid: int) -> bool:
    """Whether a signal such as SIGSTOP, or a debugger, has stopped a process."""
    return stat_fields(pid)[:1] in (["T"], ["t"])


def descendants(root: int) -> list[int]:
    """Return the processes below a process, without itself."""
    below: dict[int, list[int]] = {}
    for pid, parent in parents().items():
        below.setdefault(parent, []).append(pid)
    found = list(below.get(root, ()))
    for pid in found:  # grows while it is read
        found += below.get(pid, ())
    return found


def listed_descendants(root: int) -> list[int]:
    """Return the processes below a process as the kernel lists them: fast, but it may miss some while others end."""
    if not os.path.exists("/proc/thread-self/children"):  # noqa: PTH110 (a kernel without these lists)
        return descendants(root)
    found = children(root)
    for pid in found:  # grows while it is read
        found += children(pid)
    return found


def children(pid: int) -> list[int]:
    """Return the children of a process as the kernel lists them; empty if it has ended or the kernel lists none."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:  # noqa: PTH123
                found += map(int, file.read().split())
    except OSError:  # it has ended
        pass
    return found


def kill_tree(root: int) -> None:
    """Kill a process and its descendants. Each is stopped before its children are read, so that it starts no other."""
    stopped: set[int] = set()
    found = {root}
    while found:
        for pid in found:
            send(pid, SIGSTOP)
        stopped |= found
        found = set(descendants(root)) - stopped
    for pid in stopped:
        send(pid, SIGKILL)


def end_descendants(seconds: float = END_SECONDS) -> bool:
    """Kill every descendant of this process, which must be a subreaper; return whether all have ended in time."""
    deadline = time.monotonic() + seconds
    found: set[int] = set()
    while reap() is not None:
        if time.monotonic() > deadline:
            return False
        below = descendants(os.getpid())
        for pid in below:  # a stopped process starts no other, so each round finds fewer
            send(pid, SIGSTOP)
        if found.issuperset(below):
            for pid in below:
                send(pid, SIGKILL)
            time.sleep(0.002)
        found.update(below)
    return True


def reap() -> dict[int, int] | None:
    """Return the wait status of each child that has ended; None if this process has no children."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended or None
        if not pid:
            return ended
        ended[pid] = status


def send(pid: int, number: int) -> None:
    """Send a signal; does nothing if the process has ended."""
    try:  # noqa: SIM105 (contextlib takes 5 ms to import)
        os.kill(pid, number)
    except OSError:
        pass


def keep(report: int, seconds: float, processes: int, argv: list[str]) -> str:
    """Start a program, wait until it ends, end its descendants; return "STATUS LIMIT" or "errno NUMBER".

    STATUS is that of `subprocess`: negative for a signal. LIMIT is the limit that ended the program, or "-": "time"
    after `seconds`, "processes" when there are more than `processes`, "stopped" when it has a limit of processes and a
    signal has stopped it, "left" when a descendant cannot be killed. A zero is no limit. The program also ends when the
    other end of the socket `report` is closed.
    """
    import select  # noqa: PLC0415 (takes long, and is not needed by those who import this module)

    os.set_inheritable(report, False)
    try:
        program = os.posix_spawnp(argv[0], argv, os.environ, setsigdef=(SIGPIPE, SIGXFSZ), setpgroup=0)
    except OSError as error:
        return f"errno {error.errno}"
    waiting = select.poll()
    waiting.register(report, select.POLLIN)
    interval = _TICK if processes else 1.0
    try:
        waiting.register(os.pidfd_open(program), select.POLLIN)
    except (OSError, AttributeError):  # Linux before 5.3, Python before 3.9
        interval = 0.02
    deadline = time.monotonic() + seconds if seconds else float("inf")
    status, limit = None, "-"
    while status is None and limit == "-":
        ready = waiting.poll(max(0.0, min(interval, deadline - time.monotonic())) * 1000)
        status = (reap() or {}).get(program)
        if any(fd == report for fd, _ in ready):
            break
        if status is None and time.monotonic() >= deadline:
            limit = "time"
        elif status is None and processes and len(listed_descendants(os.getpid())) > processes:
            limit = "processes"
        elif status is None and processes and is_stopped(program):
            limit = "stopped"
    if not end_descendants():
        limit = "left"
    return f"{-SIGKILL if status is None else os.waitstatus_to_exitcode(status)} {limit}"


def limit_file_size(size: int) -> None:
    """Limit the size of each file that this process and its descendants write, in bytes."""
    import resource  # noqa: PLC0415

    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    allowed = size if hard < 0 else min(size, hard)
    resource.setrlimit(resource.RLIMIT_FSIZE, (allowed, allowed))


def main() -> None:
    """Arguments: the socket, bytes of the largest file, seconds, number of processes (0: no limit), the program."""
    import ctypes  # noqa: PLC0415
    import sys  # noqa: PLC0415

    report, file_bytes, seconds, processes = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)  # the program can neither trace the keeper nor take its socket
    if file_bytes:
        limit_file_size(file_bytes)
    answer = keep(report, seconds, processes, sys.argv[5:])
    try:  # noqa: SIM105
        os.write(report, answer.encode())
    except OSError:  # the other end is closed: nobody wants the answer
        pass
    os._exit(0)


if __name__ == "__main__":
    main()
