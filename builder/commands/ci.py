"""`buildfarm ci`: write the workflows of a project."""

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from builder.commands.plan import jobs_json
from builder.errors import Code, UsageError, mask_credentials
from builder.log import print_data, print_warning
from builder.matrix.config import Selection
from builder.matrix.load import read_plan
from builder.option import option
from builder.publish.ci.workflows import IMAGE, MARK, WorkflowOptions, workflows
from builder.store import write_atomic
from builder.untrusted import split_url

#: The form `NAME[EXTRAS] @ URL`, and a path with extras.
_NAMED = re.compile(r"[A-Za-z0-9][\w.-]*\s*(?:\[[^\]]*\])?\s*@\s*(?P<url>.+)")
_PATH = re.compile(r"(?P<path>[^\[\]]+)(?:\[[^\]]*\])?")
_COMMIT = r"(?:[0-9a-fA-F]{40}|[0-9a-fA-F]{64})(?![0-9a-fA-F])"
#: A URL whose content cannot change: a repository with a commit, an archive of a commit, or one with its hash.
_PINNED = re.compile(
    rf"(?:git\+(?:https|ssh)://[^/#]+/[^#]+@{_COMMIT}(?:#.*)?"
    rf"|https://[^/#]+/[^#]*(?:(?<![0-9a-fA-F]){_COMMIT}.*|#(?:.*&)?sha256=[0-9a-fA-F]{{64}}(?:&.*)?))"
)
_HINTS = (
    'write a URL with a commit: `--install "buildfarm @ git+https://HOST/OWNER/buildfarm@COMMIT"`, with the address of'
    " the repository that you cloned (`git remote get-url origin`) and the 40 digits of `git rev-parse HEAD`",
    "or copy buildfarm into your repository, and write its path: `--install ./tools/buildfarm`",
)


@dataclass(frozen=True)
class CiOptions(WorkflowOptions):
    """The options of `buildfarm ci`."""

    directory: Path = option("Root of the repository. It contains matrix.yaml.", "DIR", "--dir", default=Path())


def ci(options: CiOptions) -> None:
    """Write workflows for GitHub Actions that build, test and publish, with or without a GPU.

    The files are buildfarm.yml in .github/workflows, and .github/buildfarm-requirements.txt with the packages that the
    jobs install. With gpu in --require, buildfarm-wheel.yml tests each wheel on a runner with a GPU.

    A pull request and a push to --branch build the newest cell of each extension. Every night, everything is built and
    published. A new torch opens an issue; if matrix.yaml names a range that admits it, it is built too, and a pull
    request with facts.yaml is opened. Pull requests of forks start no job on a GPU runner.

    Examples:
        buildfarm ci --require cpu --install ./tools/buildfarm
        buildfarm ci --install "buildfarm @ git+https://HOST/OWNER/buildfarm@COMMIT"
        buildfarm ci --install ./tools/buildfarm --runner-labels my-arc-runners
    """
    folder = options.directory
    _, _, plan = read_plan(folder / "matrix.yaml", Selection())
    jobs_json(plan, "full")  # raises UsageError for a plan that the workflows cannot build
    files = {folder / path: text for path, text in workflows(options).items()}
    check_install(options.install, folder)
    if options.keeps_index and options.publish_labels == IMAGE:
        sentence = f"the machine of GitHub that publishes is new in each run, and keeps no wheels in {options.index}"
        hint = "name the labels of a runner of yours with --publish-labels, or leave out --index"
        raise UsageError(sentence, Code.VALUE_INVALID, where="--index", hints=[hint])
    for path in files:
        if path.exists() and not path.read_text(encoding="utf-8", errors="replace").startswith(MARK):
            sentence = "`buildfarm ci` did not write this file, and does not overwrite it"
            hint = "rename or delete the file, and run `buildfarm ci` again"
            raise UsageError(sentence, Code.ALREADY_EXISTS, where=str(path), hints=[hint])
    for path, text in files.items():
        write_atomic(path, text.encode())
    if not _has_branch(folder, options.branch):
        print_warning(
            f"this repository has no branch {options.branch}, so no push starts the workflow: name the default branch"
            " with --branch"
        )
    if why := _why_absent(folder, options.install):
        print_warning(f"--install: {why}")
    lines = [f"wrote {path}" for path in files]
    print_data("\n".join([*lines, "", *_needs(options)]) + "\n")


def _needs(options: WorkflowOptions) -> list[str]:
    """What each job needs: a runner, and settings of the repository."""
    build = "build" if options.needs_gpu else "wheels"
    hosted = f"plan, {build}, result, new torch, facts" + (", publish" if options.publish_labels == IMAGE else "")
    lines = ["What the jobs need:", f"  {hosted}: {IMAGE}, a machine of GitHub"]
    if options.publish_labels != IMAGE:
        lines.append(f"  publish: a runner with the labels {options.publish_labels}")
    if options.needs_gpu:
        lines += [
            f"  smoke: a runner with a GPU and the labels {options.runner_labels}",
            "    Without one, its jobs wait for a day, and fail. `--require cpu` writes a workflow that needs none.",
        ]
    else:
        lines.append("  No job needs a GPU: each wheel is tested on the CPU.")
    if not options.keeps_index:
        lines.append(
            "  Each run uploads an index of its own as an artifact. To keep one: --index /FOLDER --publish-labels."
        )
    return [
        *lines,
        "  No job needs a secret.",
        "A pull request builds the newest cell of each extension, and each night all cells. In the rules of the branch",
        f"{options.branch}, require the check result.",
        f"Before the first run, make the environment {options.environment} in the settings of the repository on GitHub,"
        " and",
        f"allow only the branch {options.branch} to deploy to it: the job publish runs in it.",
    ]


def _why_absent(folder: Path, value: str) -> str:
    """Why a checkout on GitHub will not have the path of `--install`; empty if it will, for a URL, and without git."""
    found = _PATH.fullmatch(value)
    path = os.path.normpath(found["path"] if found else value)
    listed = _git(folder, "ls-files", "--stage", "--", path) if (folder / path).exists() else None
    if listed is None:
        return ""
    if path != "." and ((folder / path / ".git").exists() or listed.startswith("160000 ")):
        return (
            f"{path} is a git repository of its own, so a checkout on GitHub has an empty folder in its place: move it"
            f" out of this repository, run `git -C CLONE archive --prefix={path}/ HEAD | tar x`, where CLONE is its new"
            f" place, and `git add {path}`; or name an address with a commit"
        )
    return "" if listed else f"git does not track {path}, so a checkout on GitHub lacks it: `git add {path}`"


def _has_branch(folder: Path, branch: str) -> bool:
    """Whether a git repository has a branch, here or at a remote, or its first commit makes it; True without git."""
    found = (_git(folder, "for-each-ref", "--format=%(refname:lstrip=2)", "refs/heads", "refs/remotes") or "").split()
    found = found or (_git(folder, "symbolic-ref", "--short", "HEAD") or "").split()
    return not found or any(one == branch or one.partition("/")[2] == branch for one in found)


def _git(folder: Path, *words: str) -> str | None:
    """What git prints; None without git, and outside of a repository."""
    try:
        return subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None


def check_install(value: str, folder: Path) -> None:
    """Raise UsageError unless `value` is a URL with a commit, or a path in the repository `folder` that exists.

    Every job then installs the same. A URL with a secret is refused too: the workflows are committed.
    """
    named = _NAMED.fullmatch(value)
    if named or "://" in value:
        url = named["url"] if named else value
        parts = split_url(url)
        user, _, host = parts.netloc.rpartition("@")
        # The user of git+ssh is no secret: it is `git` on most servers.
        public = parts._replace(netloc=host).geturl() if parts.scheme == "git+ssh" and ":" not in user else url
        if mask_credentials(public) != public:
            raise _refusal(
                "the URL holds a user, a password or a token, and would be in the workflows, which are committed"
            )
        if "HOST/OWNER" in url:
            raise _refusal("HOST/OWNER is the place of the address of a repository")
        if not _PINNED.fullmatch(url):
            raise _refusal(f"{url!r} is no URL with TLS and a commit, so its content could change between two jobs")
    elif value.startswith((".", "/", "~")) or ("/" in value and not value.startswith("-")):
        _check_path(value, folder)
    else:
        raise _refusal(
            f"{value!r} is no URL and no path, so each job would take what the package index has under this name"
        )


def _check_path(value: str, folder: Path) -> None:
    found = _PATH.fullmatch(value)
    path = Path(found["path"] if found else value)
    target = (folder / path).resolve()
    if not found or path.is_absolute() or value.startswith("~") or not target.is_relative_to(folder.resolve()):
        raise _refusal(f"{str(path)!r} is no path in the repository, and a job has only its files")
    if target.is_dir():
        usable = any((target / name).is_file() for name in ("pyproject.toml", "setup.py"))
    else:
        usable = target.is_file() and target.name.endswith((".whl", ".tar.gz", ".zip"))
    if not usable:
        sentence = f"{folder / path} is no folder with pyproject.toml or setup.py, and no archive"
        raise _refusal(sentence, Code.VALUE_INVALID if target.is_file() else Code.NO_SUCH_FILE)


def _refusal(sentence: str, code: Code = Code.VALUE_INVALID) -> UsageError:
    return UsageError(sentence, code, where="--install", hints=_HINTS)
