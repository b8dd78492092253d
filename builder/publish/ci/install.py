"""What `buildfarm ci --install` accepts: a requirement that is the same in every job, and that holds no secret."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from builder.errors import Code, UsageError
from builder.masking import mask_credentials
from builder.proofs.environment.facts import source_url
from builder.untrusted import split_url

#: The form `NAME[EXTRAS] @ URL`, and a path with extras.
_NAMED = re.compile(r"[A-Za-z0-9][\w.-]*\s*(?:\[[^\]]*\])?\s*@\s*(?P<url>.+)")
_PATH = re.compile(r"(?P<path>[^\[\]]+)(?:\[[^\]]*\])?")
_COMMIT = re.compile(r"[0-9a-fA-F]{40}|[0-9a-fA-F]{64}")
_IN_ARCHIVE_URL = re.compile(rf"(?<![0-9a-fA-F])(?:{_COMMIT.pattern})(?![0-9a-fA-F])")
_SHA256 = re.compile(r"(?:^|&)sha256=[0-9a-fA-F]{64}(?:&|$)")
_ARCHIVES = (".whl", ".tar.gz", ".zip")
_URL_HINT = (
    'write a URL with a commit: `--install "buildfarm @ git+https://HOST/OWNER/buildfarm@COMMIT"`, with the address of'
    " the repository that you cloned (`git remote get-url origin`) and the 40 digits of `git rev-parse HEAD`"
)
_PATH_HINT = "copy buildfarm into your repository, and write its path: `--install ./tools/buildfarm`"


def own_install() -> str:
    """The URL and the commit that this buildfarm was installed from, as `--install` takes it.

    Raises UsageError for a buildfarm that was installed from a folder or from a package index.
    """
    try:
        url = source_url(distribution("buildfarm").read_text("direct_url.json"))
    except PackageNotFoundError:
        url = ""
    if not url or url.startswith("file:"):
        raise _refusal(
            "the option is missing, and this buildfarm was not installed from a URL with a commit, which would be used",
            _URL_HINT,
            _PATH_HINT,
            code=Code.COMMAND_LINE_INVALID,
        )
    return f"buildfarm @ {url}"


def check_install(value: str, folder: Path) -> None:
    """Raise UsageError unless `value` is a URL with a commit, or a path in the repository `folder` that exists."""
    named = _NAMED.fullmatch(value)
    if named or "://" in value:
        _check_url(named["url"] if named else value)
    elif value.startswith((".", "/", "~")) or ("/" in value and not value.startswith("-")):
        _check_path(value, folder)
    else:
        raise _refusal(
            f"{value!r} is no URL and no path, so each job would take what the package index has under this name",
            _URL_HINT,
            _PATH_HINT,
        )


def _check_url(url: str) -> None:
    parts = split_url(url)
    user, _, host = parts.netloc.rpartition("@")
    # The user of git+ssh is no secret: it is `git` on most servers.
    public = parts._replace(netloc=host).geturl() if parts.scheme == "git+ssh" and ":" not in user else url
    if mask_credentials(public) != public:
        raise _refusal(
            "the URL holds a user, a password or a token, and would be in the workflows, which are committed",
            "leave it out of the URL; if the jobs cannot read the URL without it, add a copy of buildfarm to the"
            " repository, and write its path: ./tools/buildfarm",
        )
    if parts.scheme in ("http", "git+http"):
        raise _refusal(f"{url!r} gets code without TLS", "use https:// or git+https://", code=Code.NOT_ENCRYPTED)
    if parts.scheme not in ("https", "git+https", "git+ssh") or not parts.netloc or "/OWNER/" in parts.path:
        raise _refusal(f"{url!r} is no URL that each job can read", _URL_HINT, _PATH_HINT)
    pinned = _IN_ARCHIVE_URL.search(parts.path) or _SHA256.search(parts.fragment)
    if parts.scheme != "https":
        _, sign, revision = parts.path.rpartition("@")
        pinned = _COMMIT.fullmatch(revision) if sign else None
    if not pinned:
        raise _refusal(
            f"{url!r} names no commit, so its content can change between two jobs",
            "end the URL of a repository with @ and the 40 digits of a commit, as `git ls-remote` prints them",
            "name an archive of a commit, or add #sha256=HASH to its URL",
        )


def _check_path(value: str, folder: Path) -> None:
    found = _PATH.fullmatch(value)
    if not found:
        raise _refusal(f"{value!r} is no path with extras", _PATH_HINT)
    path = Path(found["path"])
    root, target = folder.resolve(), (folder / path).resolve()
    if path.is_absolute() or value.startswith("~") or not target.is_relative_to(root):
        raise _refusal(f"{str(path)!r} is outside the repository, and a job has only its files", _PATH_HINT)
    if not target.exists():
        raise _refusal(f"{folder / path} does not exist", _PATH_HINT, code=Code.NO_SUCH_FILE)
    is_source = any((target / name).is_file() for name in ("pyproject.toml", "setup.py"))
    if not is_source and not (target.is_file() and target.name.endswith(_ARCHIVES)):
        code = Code.NO_SUCH_FILE if target.is_dir() else Code.VALUE_INVALID
        sentence = f"{folder / path} is no folder with pyproject.toml or setup.py, and no archive"
        raise _refusal(sentence, _PATH_HINT, code=code)


def _refusal(sentence: str, *hints: str, code: Code = Code.VALUE_INVALID) -> UsageError:
    return UsageError(sentence, code, where="--install", hints=hints)
