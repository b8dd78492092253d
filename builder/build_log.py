"""The part of a log file that one program appended: take the size before it runs, read the text during or after."""

from pathlib import Path


def log_size(log: Path) -> int:
    """Bytes in a log file; 0 when the file does not exist."""
    return log.stat().st_size if log.exists() else 0


def text_since(log: Path, offset: int) -> str:
    """Text of a log file after its first `offset` bytes; empty when the file does not exist."""
    if not log.exists():
        return ""
    with log.open("rb") as stream:
        stream.seek(offset)
        return stream.read().decode(errors="replace")


def complete_lines(log: Path, offset: int) -> tuple[list[str], int]:
    """The complete lines of a log file after its first `offset` bytes, and the offset of their end.

    A file that is shorter than `offset` was replaced, and is read from its beginning.
    """
    if not log.exists():
        return [], offset
    with log.open("rb") as stream:
        start = offset if stream.seek(0, 2) >= offset else 0
        stream.seek(start)
        text, newline, _ = stream.read().rpartition(b"\n")
    return text.decode(errors="replace").splitlines(), start + len(text) + len(newline)
