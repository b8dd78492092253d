"""The errors that users see: a sentence, what it is about, hints, and an exit code; and what hides secrets in texts.

`mask_credentials` hides them in everything that is printed, logged or stored.
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Any

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


class Exit(IntEnum):
    """Exit codes of the command `buildfarm`. They do not change, so scripts may rely on them.

    The documentation is generated from the comments.
    """

    #: All builds succeeded and no check failed. Checks may be "not run", for example the GPU checks on a machine
    #: without a GPU.
    OK = 0
    #: A build failed, a check failed, a rebuilt wheel differs, or `doctor` or `index check` found a fault. `publish`
    #: or `adopt` refused a wheel or found it below the level, or `resolve` found no wheel that fits. Also: the disk is
    #: full, or a file cannot be read or written.
    FAILED = 1
    #: The command line, matrix.yaml, a recipe or the machine does not allow the run. No build was started, but `build
    #: SOURCE` may have written a recipe.
    USAGE = 2
    #: The selection contains no cell that can be built or tested.
    NOTHING_SELECTED = 3
    #: A tool, a toolkit, a container engine, a Python or a download is missing. Also: an input of `rebuild` differs
    #: from the wheel's record, or no check of `smoke` could run.
    TOOL_MISSING = 4
    #: The run was interrupted; finished builds and proofs are kept.
    INTERRUPTED = 130


class Code(StrEnum):
    """The kind of an error. Codes do not change, so scripts may rely on them; the sentences may change.

    The documentation is generated from the comments.
    """

    #: A file, a recipe or a token of this name exists, and the command does not replace it.
    ALREADY_EXISTS = "already-exists"
    #: A certificate or its key is missing or cannot be read, or the other side does not accept it.
    CERTIFICATE_NOT_USABLE = "certificate-not-usable"
    #: The wheel was built, but a check of it failed, or the gate ended before it had a result for each op.
    CHECKS_FAILED = "checks-failed"
    #: The command has no such option or argument, needs another one, or cannot combine two of them.
    COMMAND_LINE_INVALID = "command-line-invalid"
    #: The source does not compile, downloads a wheel instead, or makes none; or a step of the build container failed.
    COMPILE_FAILED = "compile-failed"
    #: The machine has no C++ compiler.
    COMPILER_MISSING = "compiler-missing"
    #: No C++ compiler of the machine is accepted by the CUDA toolkit or by torch.
    COMPILER_UNSUITABLE = "compiler-unsuitable"
    #: The disk is full, or has less free space than a build needs.
    DISK_FULL = "disk-full"
    #: The machine has no docker program, no buildx plugin, or an engine older than cibuildwheel supports.
    ENGINE_MISSING = "engine-missing"
    #: The Docker engine does not answer, or refuses a request.
    ENGINE_NOT_ANSWERING = "engine-not-answering"
    #: The build environment or its image could not be made, such as for requirements that contradict each other.
    ENVIRONMENT_FAILED = "environment-failed"
    #: The matrix lists no extension of this name, or none at all.
    EXTENSION_UNKNOWN = "extension-unknown"
    #: The source of a build could not be fetched: git failed, its archive is damaged, or there is no such commit.
    FETCH_FAILED = "fetch-failed"
    #: A file of the project, the store or an index cannot be read, is too large, or has not the expected form.
    FILE_INVALID = "file-invalid"
    #: The image is not on this machine, and it is not pulled, or the registry does not give it out.
    IMAGE_NOT_FOUND = "image-not-found"
    #: No known base image, or not this one, can build or test these cells.
    IMAGE_UNSUITABLE = "image-unsuitable"
    #: The index cannot be changed through this address, or not safely by several publishers.
    INDEX_NOT_WRITABLE = "index-not-writable"
    #: A key of matrix.yaml or extension.yaml has a value that is not allowed.
    KEY_INVALID = "key-invalid"
    #: A program, or a process of a worker, was killed.
    KILLED = "killed"
    #: A token or a key is missing, unknown or expired, or does not allow the request.
    LOGIN_REFUSED = "login-refused"
    #: A server, registry or scheduler does not answer, a connection failed, or the index is busy.
    NETWORK_UNREACHABLE = "network-unreachable"
    #: Neither this machine, a container nor a worker can build or test a selected cell.
    NO_CELL_HERE = "no-cell-here"
    #: The matrix lists no selected cell, or skips each of them.
    NO_CELL_LEFT = "no-cell-left"
    #: There is no Python environment at the named place, or it has no torch that fits.
    NO_ENVIRONMENT = "no-environment"
    #: The machine or the container has no usable GPU.
    NO_GPU = "no-gpu"
    #: The named place contains no package index, or no server that `buildfarm serve` started.
    NO_INDEX = "no-index"
    #: The store has no such run, or none that was started in this folder.
    NO_RUN = "no-run"
    #: No torch release has wheels for the combination of torch, CUDA and Python.
    NO_SUCH_COMBINATION = "no-such-combination"
    #: A file or folder does not exist, such as matrix.yaml.
    NO_SUCH_FILE = "no-such-file"
    #: There is no wheel to work on.
    NO_WHEEL = "no-wheel"
    #: The file is not a wheel of the kind that the command takes, or the wheel has no module to import.
    NOT_A_WHEEL = "not-a-wheel"
    #: The connection would send a secret or code without TLS.
    NOT_ENCRYPTED = "not-encrypted"
    #: The index has no such wheel, project or token.
    NOT_IN_INDEX = "not-in-index"
    #: The memory is not enough for a compiler, or a container reached its limit.
    OUT_OF_MEMORY = "out-of-memory"
    #: A Python package or the program git is not installed.
    PACKAGE_MISSING = "package-missing"
    #: The package index does not have the package or the version.
    PACKAGE_NOT_FOUND = "package-not-found"
    #: A patch of the recipe does not apply.
    PATCH_FAILED = "patch-failed"
    #: The system does not let buildfarm read or write a file or folder, or its path is not allowed.
    PATH_NOT_USABLE = "path-not-usable"
    #: The command does not support the platform, or the wheel needs a newer C library (glibc).
    PLATFORM_UNSUPPORTED = "platform-unsupported"
    #: The proofs or the provenance of a wheel cannot be read, or belong to a different file.
    PROOFS_NOT_USABLE = "proofs-not-usable"
    #: The index has a different file of this name, and a published file never changes.
    PUBLISHED_FILE_DIFFERS = "published-file-differs"
    #: The machine lacks a Python, and it is not downloaded.
    PYTHON_MISSING = "python-missing"
    #: The source, the recipe or the toolchain differs from the record in the wheel.
    RECORD_DIFFERS = "record-differs"
    #: The wheel has no record of its build, or nothing can be built again from this one.
    RECORD_NOT_USABLE = "record-not-usable"
    #: auditwheel cannot repair the wheel.
    REPAIR_FAILED = "repair-failed"
    #: What was fetched differs from its hash or commit, or from the package that was expected.
    SOURCE_DIFFERS = "source-differs"
    #: The source is refused: its archive is too large, or files or links lead out of its folder.
    SOURCE_UNSAFE = "source-unsafe"
    #: buildfarm cannot make an extension from the source.
    SOURCE_UNSUPPORTED = "source-unsupported"
    #: The machine has no CUDA toolkit of the version.
    TOOLKIT_MISSING = "toolkit-missing"
    #: The server refuses the upload.
    UPLOAD_REFUSED = "upload-refused"
    #: An option or argument has a value that is not allowed, or that cannot be used here, such as a port.
    VALUE_INVALID = "value-invalid"
    #: The name or the version of the recipe and of the source differ.
    VERSION_DIFFERS = "version-differs"
    #: This version of buildfarm does not know the torch, CUDA, Python or GPU.
    VERSION_UNKNOWN = "version-unknown"
    #: The wheel or a library in it cannot be read, or its files contradict each other.
    WHEEL_DAMAGED = "wheel-damaged"
    #: The file name is not that of a wheel, or differs from its metadata.
    WHEEL_MISLABELLED = "wheel-mislabelled"


_OF_STAGE = {
    "fetch": Code.FETCH_FAILED,
    "environment": Code.ENVIRONMENT_FAILED,
    "compile": Code.COMPILE_FAILED,
    "repair": Code.REPAIR_FAILED,
    "verify": Code.CHECKS_FAILED,
}

#: What to do when the disk is full.
DISK_HINT = "`buildfarm store prune --keep-days 30` deletes what was not used for 30 days"


class BuildfarmError(Exception):
    """An expected error, printed without a traceback. A traceback means a bug of buildfarm.

    Secrets in its texts are masked.

    Attributes:
        sentence: what is wrong, one sentence.
        code: the kind of the error.
        where: the file and key, the package or the command that the error is about; may be empty.
        hints: what to do next, one solution each.

    """

    exit_code: Exit = Exit.FAILED

    def __init__(self, sentence: str, code: Code, *, where: str = "", hints: Sequence[str] = ()) -> None:
        super().__init__(mask_credentials(sentence))
        self.sentence = mask_credentials(sentence)
        self.code = code
        self.where = mask_credentials(where)
        self.hints = tuple(map(mask_credentials, hints))

    def __str__(self) -> str:
        return f"{self.where}: {self.sentence}" if self.where else self.sentence

    def __reduce__(self) -> tuple[Any, ...]:
        """Let a pickle keep every attribute: workers of a scheduler send their errors."""
        return type(self).__new__, (type(self), *self.args), self.__dict__

    def to_json(self) -> dict[str, Any]:
        """The error as `--json` prints it."""
        return {"code": self.code, "error": self.sentence, "where": self.where, "hints": list(self.hints)}


class UsageError(BuildfarmError):
    """The command line, matrix.yaml, a recipe or the machine does not allow the run; nothing was started."""

    exit_code = Exit.USAGE


class NothingSelectedError(BuildfarmError):
    """The selection contains no cell that can be built or tested."""

    exit_code = Exit.NOTHING_SELECTED


class MissingToolError(BuildfarmError):
    """A tool, a toolkit, a container engine, a Python or a download is missing."""

    exit_code = Exit.TOOL_MISSING


class BuildError(BuildfarmError):
    """One build failed at one stage; the other builds continue. Without a code, the stage decides the code.

    Attributes:
        stage: the stage that failed: `fetch`, `environment`, `compile`, `repair` or `verify`; in a container also
            `copy`.
        log: file with the complete output, or None.
        excerpt: lines that show the place of the error in the source, or empty.

    """

    def __init__(
        self,
        sentence: str,
        code: Code | None = None,
        *,
        stage: str,
        log: Path | None = None,
        where: str = "",
        hints: Sequence[str] = (),
        excerpt: Sequence[str] = (),
    ) -> None:
        super().__init__(sentence, code or _OF_STAGE.get(stage, Code.COMPILE_FAILED), where=where, hints=hints)
        self.stage = stage
        self.log = log
        self.excerpt = tuple(map(mask_credentials, excerpt))


class SymbolsUnreadableError(MissingToolError):
    """The symbols of the cell's torch cannot be read. The other checks can run."""


class PreflightError(BuildfarmError):
    """Several errors that were found before anything was started.

    Attributes:
        problems: the errors; the highest exit code among them is the exit code of all.

    """

    def __init__(self, problems: Sequence[BuildfarmError]) -> None:
        super().__init__(f"{len(problems)} problems were found; nothing was started", problems[0].code)
        self.problems = tuple(problems)
        self.exit_code = max(problem.exit_code for problem in problems)


def raise_problems(problems: Sequence[BuildfarmError]) -> None:
    """Raise the problem if there is one, and PreflightError if there are several."""
    if problems:
        raise problems[0] if len(problems) == 1 else PreflightError(problems)
