"""Records a real run: what a terminal shows at its end. Needs pyte.

    python -m docs.scripts.record build buildfarm build --torch 2.11 --cuda 13.0 --python 3.12 --ext ms_deform_attn

runs the command in a pseudo terminal and writes the final screen to recordings/build.ansi. `python -m docs.generate`
turns that file into a picture. Run it in a clone whose path may be shown. Nothing in the file is edited.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import shlex
import struct
import sys
import termios
from pathlib import Path

import pyte

COLUMNS, LINES = 126, 60
RECORDINGS = Path(__file__).parent.parent / "recordings"
_COLOURS = {"red": 31, "green": 32, "brown": 33, "blue": 34, "magenta": 35, "cyan": 36}


def screen_of(argv: list[str]) -> pyte.Screen:
    """Run a command in a terminal; the screen at its end."""
    screen = pyte.Screen(COLUMNS, LINES)
    stream = pyte.ByteStream(screen)
    pid, descriptor = pty.fork()
    if pid == 0:
        os.environ |= {"TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(LINES)}
        os.execvp(argv[0], argv)  # noqa: S606
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    while True:
        try:
            data = os.read(descriptor, 65536)
        except OSError:  # the command has ended
            break
        if not data:
            break
        stream.feed(data)
    os.waitpid(pid, 0)
    return screen


def as_ansi(screen: pyte.Screen) -> str:
    """The screen as lines with colour codes, without empty lines at the end."""
    lines = []
    for number in range(LINES):
        row, text, style = screen.buffer[number], "", ""
        for column in range(COLUMNS):
            char = row[column]
            wanted = ";".join(
                [*(["1"] if char.bold else []), *([str(_COLOURS[char.fg])] if char.fg in _COLOURS else [])]
            )
            if wanted != style:
                text += "\x1b[0m" if not wanted else f"\x1b[0;{wanted}m"
                style = wanted
            text += char.data
        lines.append(re.sub(r"[ ]+(\x1b\[0m)?$", r"\1", text + ("\x1b[0m" if style else "")))
    return "\n".join(lines).rstrip("\n") + "\n"


def main() -> None:
    """Record the command of the arguments."""
    name, *argv = sys.argv[1:]
    text = as_ansi(screen_of(argv))
    RECORDINGS.mkdir(exist_ok=True)
    (RECORDINGS / f"{name}.ansi").write_text(f"$ {shlex.join(argv)}\n{text}", encoding="utf-8")


if __name__ == "__main__":
    main()
