"""uv: where it is, the environment variables it gets, how it is called, and what its errors mean."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import uv

from builder.diagnosis.known_errors import hint_of, reports
from builder.errors import DISK_HINT, BuildError, BuildfarmError, Code, MissingToolError, mask_credentials
from builder.images.network import INDEX_SETTINGS, package_settings, prepend_index, saved_folder
from builder.matrix.axes import Torch
from builder.matrix.compat import Compat
from builder.process import log_size, run, text_since

#: Variables that name a proxy, in the order in which an error names them.
_PROXIES = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "HTTP_PROXY", "http_proxy")
#: What uv says about a package that its cache lacks if it may not use the network.
_NOT_CACHED = re.compile(r"not found in the cache|network (?:was|connectivity is) disabled", re.IGNORECASE)

#: How uv introduces a cause, before and after uv 0.10.
_CAUSE = re.compile(r"(?s)(?:╰─▶|cause:) (.+?)(?:\n\n|$)")
_COMPILE = ("pip", "compile", "--quiet", "--no-header")


class UnsatisfiableError(MissingToolError):
    """The packages exist, but they conflict with each other or with this Python."""


class MachineFaultError(BuildError):
    """The disk is full, or a signal ended uv. This says nothing about the packages."""


@cache
def find_uv() -> Path:
    """The uv program of buildfarm's own environment."""
    return Path(uv.find_uv_bin())


def uv_command() -> str:
    """How a user calls uv: by its name if it is on PATH, otherwise by the path of the uv in buildfarm's environment."""
    return "uv" if shutil.which("uv") else shlex.quote(str(find_uv()))


def index_setting(index: Sequence[str] = ()) -> str:
    """The variable that names the package index, and its value without credentials, for error messages.

    `index` are the URLs of indexes that are asked before.
    """
    usual = "the default package index (UV_DEFAULT_INDEX is not set)"
    variables = package_settings()
    named = (f"{name}={mask_credentials(url)}" for name in INDEX_SETTINGS if (url := variables.get(name)))
    return " and ".join([*map(mask_credentials, index), next(named, usual)])


def network_hints() -> list[str]:
    """What the variables of the shell have to do with a download that failed, without credentials; often nothing."""
    if folder := saved_folder():
        return [f"`buildfarm store save {folder}`, on a machine with a network, adds what the folder lacks"]
    offline = package_settings().get("UV_OFFLINE", "")
    hints = [f"UV_OFFLINE={offline} forbids uv to use the network: unset it"] if is_offline() else []
    name = next((name for name in _PROXIES if os.environ.get(name)), "")
    if name and not hints:
        scheme, separator, rest = os.environ[name].rpartition("://")
        login, at, host = rest.rpartition("@")
        proxy = f"{scheme}{separator}{'***' if login else ''}{at}{host}"
        hints.append(f"{name}={proxy} names a proxy: if it does not run, correct or unset this variable")
    return hints


def is_offline() -> bool:
    """Whether UV_OFFLINE forbids the network, for uv and for buildfarm's own downloads."""
    return package_settings().get("UV_OFFLINE", "").lower() not in {"", "0", "false", "f", "n", "no", "off"}


def uv_variables(index: Sequence[str] = ()) -> dict[str, str]:
    """Environment variables for uv: it downloads no Python, and uses pip's index setting when uv has none.

    No other setting of the user changes what uv installs (`package_settings`), and uv reads no file with settings.
    `index` are URLs of indexes that uv asks before the default index. They may hold passwords, so they are passed as
    a variable: every user of the machine can read arguments.
    """
    hidden = ("VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME")
    variables = {k: v for k, v in package_settings().items() if k not in hidden}
    if not variables.keys() & {"UV_DEFAULT_INDEX", "UV_INDEX_URL"} and "PIP_INDEX_URL" in variables:
        variables["UV_DEFAULT_INDEX"] = variables["PIP_INDEX_URL"]
    own = {"UV_NO_CONFIG": "1", "UV_PYTHON_DOWNLOADS": "never", "UV_NO_PROGRESS": "1"}
    return {**prepend_index(index, variables), **own}


@dataclass(frozen=True)
class UvRun:
    """Runs uv. Its methods raise what `uv_error` returns when uv fails.

    `index` are URLs of indexes that it asks before the default one. Its output is appended to `log`, and its processes
    carry `owner`.
    """

    index: Sequence[str]
    log: Path
    owner: str

    def run(self, arguments: Sequence[str], requirements: Sequence[str]) -> None:
        """Run uv; `requirements` are only named in errors."""
        start = log_size(self.log)
        status = run([str(find_uv()), *arguments], log=self.log, owner=self.owner, env=uv_variables(self.index))
        if status != 0:
            raise uv_error(status, self.log, start, requirements, self.index)

    def compile(self, requirements: Sequence[str], arguments: Sequence[str], folder: Path) -> str:
        """Resolve requirements with `uv pip compile` in an empty folder; returns one exact requirement per line."""
        source, target = folder / "requirements.in", folder / "requirements.txt"
        source.write_text("\n".join(requirements) + "\n")
        self.run([*_COMPILE, *arguments, "--output-file", str(target), str(source)], requirements)
        return target.read_text()

    def create(self, folder: Path, python: Path, requirements: Sequence[str], options: Sequence[str] = ()) -> None:
        """Create a virtual environment and install into it; `options` are further ones of `uv pip install`."""
        self.run(["venv", "--no-project", "--python", str(python), str(folder)], requirements)
        self.install(folder, requirements, options)

    def install(self, folder: Path, requirements: Sequence[str], options: Sequence[str] = ()) -> None:
        """Install into an environment; UnsatisfiableError when the packages conflict."""
        argv = ["pip", "install", "--python", str(folder / "bin" / "python"), *options, *requirements]
        self.run(argv, requirements)


def compile_captured(
    requirements: str, arguments: Sequence[str], *, folder: Path, index: Sequence[str], python: str = sys.executable
) -> subprocess.CompletedProcess[str]:
    """Resolve requirements, one per line, with `uv pip compile`; stdout and stderr are captured.

    `folder` is the working directory; it should be empty, because uv reads the pyproject.toml there. `python` is the
    interpreter that uv resolves with.
    """
    return subprocess.run(
        [find_uv(), *_COMPILE, "--color=never", f"--python={python}", *arguments, "-"],
        cwd=folder,
        env=uv_variables(index),
        input=requirements,
        capture_output=True,
        text=True,
        check=False,
    )


def cause_of(output: str) -> str:
    """The last cause that uv printed, on one line; empty when it printed none."""
    causes = _CAUSE.findall(output)
    return " ".join(causes[-1].split()).replace(" cause: ", ": ") if causes else ""


def uv_error(status: int, log: Path, start: int, requirements: Sequence[str], index: Sequence[str]) -> BuildfarmError:
    """Why uv failed, read from the log after its first `start` bytes; `status` is negative for a signal."""
    if status < 0 and status != -signal.SIGBUS:
        return MachineFaultError(f"uv was killed by signal {-status}", Code.KILLED, stage="environment", log=log)
    if folder := saved_folder():
        from builder.images.saved import Saved  # noqa: PLC0415 - loads slowly

        if damage := next(Saved.read(folder).damage(folder), None):
            return damage
    output = text_since(log, start)
    wanted = ", ".join(requirements)
    where = index_setting(index)
    if status < 0 or reports("disk-full", output):  # SIGBUS: it wrote to a file that is mapped into its memory
        sentence = "the disk is full; unfinished files were deleted"
        return MachineFaultError(sentence, Code.DISK_FULL, stage="environment", log=log, hints=[DISK_HINT])
    if reports("unreachable", output) or reports("fetch-failed", output):
        return _unreachable("the package index cannot be reached", output, wanted, index, log)
    if is_offline() and _NOT_CACHED.search(output):
        where = "the saved folder" if saved_folder() else "uv's cache, and uv is offline"
        return _unreachable(f"a package is not in {where}", output, wanted, index, log)
    if newer := reports("newer-glibc", output):
        tags = " or ".join(re.findall(r"'(\w+)'", newer["tags"]))
        return MissingToolError(
            f"the wheel needs {tags}, but the C library (glibc) here supports at most {newer['here']}",
            Code.PLATFORM_UNSUPPORTED,
            hints=[
                hint_of("newer-glibc"),
                "set `runtime` under `images:` in matrix.yaml to a newer base image for such containers",
            ],
        )
    absent = reports("no-package", output)
    if absent or reports("conflict", output):
        detail = cause_of(output) or "no version satisfies the requirements"
        hints = [f"requirements: {wanted}", hint_of("no-package")]
        if absent:
            sentence = f"the package index does not have a required package or version: {detail}"
            return MissingToolError(sentence, Code.PACKAGE_NOT_FOUND, where=where, hints=hints)
        return UnsatisfiableError(f"the packages conflict: {detail}", Code.ENVIRONMENT_FAILED, where=where, hints=hints)
    cause = cause_of(output)
    sentence = f"uv could not create the environment for {wanted}{f': {cause}' if cause else ''}"
    hints = [f"the full output is in {log}"]
    if lacking := reports("dependency-build", output):
        # The last line that the build of the package printed, and the packages that require it.
        printed = re.search(r"(?s)\[std(?:err|out)\]\n((?: +[^\n]*\n|\n(?= ))+)", output)
        why = f": {printed[1].strip().splitlines()[-1].strip().rstrip('.')}" if printed and printed[1].strip() else ""
        if chain := re.search(r"(?m)^ *hint: (`\S+` \(\S+\) was included because .+)$", output):
            why += f" ({chain[1].replace('`', '')})"
        sentence = f"{lacking['package']} has no wheel for this Python, and its source does not build{why}"
        hints.insert(0, hint_of("dependency-build"))
    return BuildError(sentence, stage="environment", log=log, hints=hints)


def _unreachable(sentence: str, output: str, wanted: str, index: Sequence[str], log: Path) -> MissingToolError:
    """An index does not answer. One network error of many builds is printed once, so the sentence names no package."""
    named = re.search(r"(?i)failed to (?:fetch: `?\S+/|download `)([\w.-]+)\S*$", output, re.MULTILINE)
    reach = ["set UV_DEFAULT_INDEX to an index or mirror that this machine can reach"]
    torch = re.search(r"\btorch==([\w.]+)\+cu\d+", wanted)
    if torch and any(re.split("://|@", url)[-1].rstrip("/") in output for url in index):
        default = Compat.load().torch(Torch.parse(torch[1])).default
        reach = [
            f"the default package index has torch {torch[1]} for CUDA {default}: build for it with `--cuda {default}`",
            "or set `torch_index` in matrix.yaml to a mirror of PyTorch's index that this machine can reach",
        ]
    hints = [
        *network_hints(),
        *([] if is_offline() else reach),
        *([f"uv failed to download {named[1]}"] if named else []),
        f"requirements: {wanted}",
        f"the full output is in {log}",
    ]
    return MissingToolError(sentence, Code.NETWORK_UNREACHABLE, where=index_setting(index), hints=hints)
