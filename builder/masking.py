"""Secrets in texts: the one function that hides them in everything that is printed, logged or stored."""

import re
from contextlib import suppress
from pathlib import Path

#: Ends of the names of parameters that hold a secret, such as `?private_token=…` or `&X-Amz-Signature=…`.
SECRET_PARAMETERS = ("token", "key", "secret", "password", "signature", "sig", "credential", "auth")
#: What comes before a secret, the secret, and what comes after it.
_SECRET = re.compile(
    r"(?P<url>//)(?!git@[^@/\s]*(?:[/\s]|$))[^/\s]*(?P<at>@)"
    rf"|(?P<parameter>[?&;][\w.-]*(?:{'|'.join(SECRET_PARAMETERS)})=)[^&;#\s'\"]+"
    r"|(?P<path>://[^\s'\"]*?/(?:t|token|tokens)/)[^/\s'\"]{8,}"
    r"|(?P<header>\bauthorization['\"]?\s*[:=]\s*['\"]?(?:basic|bearer|token)\s+)[^\s'\"]+"
    r"|(?P<known>\b(?:gh[pousr]_|github_pat_|glpat-|pypi-))[\w-]{20,}",
    re.IGNORECASE,
)
_LONGEST_LINE = 1 << 20


def mask_credentials(text: str) -> str:
    """Return the text with `***` in place of secrets: `https://***@host/simple?token=***`, `https://host/t/***/simple`.

    Secrets are user and password of a URL (but not the user `git` alone, whom servers have for ssh), every parameter of
    a query whose name ends with one of SECRET_PARAMETERS, the part of a path after `t`, `token` or `tokens`, an
    Authorization header, and tokens of GitHub, GitLab and PyPI.
    """
    return _SECRET.sub(lambda found: _around(found, "***"), text)


def mask_log(log: Path, start: int) -> None:
    """Hide the secrets in a log file after its first `start` bytes.

    Each secret is overwritten by asterisks of its length, because others may append to the file at the same time.
    """
    with suppress(FileNotFoundError), log.open("r+b") as stream:
        stream.seek(start)
        place = start
        while line := stream.readline(_LONGEST_LINE):
            text = line.decode("latin-1")  # every byte is one character, so lengths stay
            masked = _SECRET.sub(lambda found: _around(found, "*" * (len(found[0]) - len(_around(found, "")))), text)
            if masked != text:
                stream.seek(place)
                stream.write(masked.encode("latin-1"))
            place += len(line)
            stream.seek(place)


def _around(found: re.Match[str], stars: str) -> str:
    before = next(text for name, text in found.groupdict().items() if text is not None and name != "at")
    return f"{before}{stars}{found['at'] or ''}"
