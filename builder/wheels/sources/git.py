"""A git repository at one exact commit, with submodules; checkouts are kept and verified before each use."""

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from urllib.parse import unquote, urlsplit

from filelock import FileLock

from builder.diagnosis.known_errors import hint_of, reports
from builder.errors import DISK_HINT, BuildfarmError, Code, MissingToolError, UsageError, mask_credentials
from builder.images.network import saved_folder
from builder.matrix.config import GitSource
from builder.untrusted import without_credentials
from builder.wheels.toolchain.uv import network_hints

#: A credential helper of git: gives user and password for the host of the source alone; a submodule may be elsewhere.
_HELPER = """!f() {
  while read -r line; do [ "$line" != "host=$BUILDFARM_GIT_HOST" ] || host=yes; done
  [ "$1$host" != getyes ] || printf 'username=%s\\npassword=%s\\n' "$BUILDFARM_GIT_USER" "$BUILDFARM_GIT_PASSWORD"
}; f"""


#: The part of a URL before the path, `git@host:` or `ssh://git@host:22/`, for a server that git reaches by ssh.
_SSH_URL = re.compile(r"ssh://(?:[\w.-]+@)?(?P<host>[^:/]+)(?::\d+)?/|[\w.-]+@(?P<scp>[^:/]+):")


def checkout(source: GitSource, *, cache: Path) -> Path:
    """Return a folder under `<cache>/git/` that contains exactly this commit and its `.git`.

    A kept checkout is used without network if git finds no change in it; otherwise it is fetched again.
    Raises UsageError when the repository has no such commit, and MissingToolError when there is no git or the
    repository cannot be reached.
    """
    _check_git(source.url)
    # The URL is part of the name, because relative URLs of submodules depend on it.
    name = f"{source.revision[:12]}-{hashlib.sha256(source.url.encode()).hexdigest()[:12]}"
    tree, aside = cache / "git" / name, cache / "git" / f".{name}"
    tree.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(tree.parent / f"{name}.lock"):
        if _untouched(tree, source):
            return tree
        shutil.rmtree(tree, ignore_errors=True)
        shutil.rmtree(aside, ignore_errors=True)  # left by a killed run
        try:
            _fetch(source, aside)
            aside.rename(tree)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    return tree


def resolve_revision(url: str, revision: str) -> str:
    """Return the full hash of the commit that a branch, a tag or a full hash names now; empty: the default branch.

    Raises UsageError when the repository has no such branch or tag, and MissingToolError when there is no git or the
    repository cannot be reached.
    """
    if re.fullmatch(r"[0-9a-f]{40}", revision):
        return revision
    _check_git(url)
    source = GitSource(url, revision)
    with tempfile.TemporaryDirectory() as empty:
        listed = _git(source, Path(empty), "ls-remote", "--", without_credentials(url), check=True).stdout
    commits = {name: commit for commit, _, name in (line.partition("\t") for line in listed.splitlines())}
    # An annotated tag has a hash of its own; `^{}` is the commit that it names.
    names = [f"refs/heads/{revision}", f"refs/tags/{revision}^{{}}", f"refs/tags/{revision}"] if revision else ["HEAD"]
    found = next((commits[name] for name in names if name in commits), None)
    if found is None:
        raise UsageError(
            f"the repository has no branch or tag {revision!r}" if revision else "the repository has no commit",
            Code.FETCH_FAILED,
            where=mask_credentials(url),
            hints=("name a branch, a tag, or a commit by its full hash of 40 digits",),
        )
    return found


def _check_git(url: str) -> None:
    if not shutil.which("git"):
        raise MissingToolError(
            "git is not on PATH", Code.PACKAGE_MISSING, where=mask_credentials(url), hints=("install git",)
        )


def _untouched(tree: Path, source: GitSource) -> bool:
    if not (tree / ".git").exists():
        return False
    head = _git(source, tree, "rev-parse", "HEAD")
    status = _git(source, tree, "status", "--porcelain", "--ignored", "--ignore-submodules=none")
    return head.stdout.strip() == source.revision and status.returncode == 0 and not status.stdout.strip()


def _fetch(source: GitSource, aside: Path) -> None:
    if saved_folder() and not source.url.startswith(("file://", "/")):
        lacks = f"the saved folder lacks {mask_credentials(source.url)}"
        raise MissingToolError(lacks, Code.FETCH_FAILED, hints=network_hints())
    aside.mkdir()
    _git(source, aside, "init", "--quiet", check=True)
    _git(source, aside, "remote", "add", "--", "origin", without_credentials(source.url), check=True)
    # Not every server serves a commit by its hash; then fetch all branches and tags.
    if _git(source, aside, "fetch", "--quiet", "--depth=1", "origin", source.revision).returncode:
        everything = ("+refs/heads/*:refs/remotes/origin/*", "+refs/tags/*:refs/tags/*")
        _git(source, aside, "fetch", "--quiet", "origin", *everything, check=True)
        if _git(source, aside, "cat-file", "-e", f"{source.revision}^{{commit}}").returncode:
            raise UsageError(
                f"the repository has no commit {source.revision}",
                Code.FETCH_FAILED,
                where=mask_credentials(source.url),
                hints=(
                    "correct `revision` in the recipe",
                    "if the commit exists only in a fork, set `git` in the recipe to the URL of the fork",
                    "if the commit is on no branch and no tag, push it to a branch",
                ),
            )
    _git(source, aside, "checkout", "--quiet", "--detach", source.revision, check=True)
    if (aside / ".gitmodules").exists():
        update = ("submodule", "--quiet", "update", "--init", "--recursive")
        if _git(source, aside, *update, "--depth=1").returncode:
            # The shallow submodules would stay shallow: delete them and fetch them again.
            _git(source, aside, "submodule", "--quiet", "deinit", "--all", "--force", check=True)
            shutil.rmtree(aside / ".git" / "modules", ignore_errors=True)
            _git(source, aside, *update, check=True)
    if not _untouched(aside, source):
        raise MissingToolError(
            f"the checked-out files differ from those of {source.revision} in the repository",
            Code.SOURCE_DIFFERS,
            where=mask_credentials(source.url),
            hints=(
                "a filter (for example git-lfs) or a gitattributes file of this machine changes files on checkout;"
                " remove the setting `filter.*` or `core.attributesFile` that `git config --list` prints",
            ),
        )


def _git(source: GitSource, tree: Path, *words: str, check: bool = False) -> subprocess.CompletedProcess[str]:
    """Run git in `tree` without hooks, prompts or a surrounding repository; `check`: raise when git fails."""
    settings = ["core.hooksPath=/dev/null", "core.autocrlf=false", "core.fsmonitor=false"]
    if source.url.startswith(("file://", "/")):
        # git refuses local submodules by default; a recipe with a local repository may have them.
        settings.append("protocol.file.allow=always")
    environment = {k: v for k, v in os.environ.items() if k not in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")}
    environment |= {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C", "GIT_CEILING_DIRECTORIES": str(tree.resolve().parent)}
    if (bare := without_credentials(source.url)) != source.url:
        parts = urlsplit(source.url)
        environment |= {
            "BUILDFARM_GIT_HOST": urlsplit(bare).netloc,
            "BUILDFARM_GIT_USER": unquote(parts.username or ""),
            "BUILDFARM_GIT_PASSWORD": unquote(parts.password or ""),
        }
        settings += ["credential.helper=", f"credential.helper={_HELPER}"]  # no helper of the user stores them
    options = [part for setting in settings for part in ("-c", setting)]
    done = subprocess.run(
        ["git", *options, *words],
        cwd=tree,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if check and done.returncode:
        raise _failure(source, tree, words[0], done.stderr)
    return done


def _failure(source: GitSource, tree: Path, verb: str, output: str) -> BuildfarmError:
    lines = [line for line in output.splitlines() if line.strip()]
    # ssh says why on the line before that of git.
    lines = [line for line in lines if "Could not read from remote repository" not in line] or lines
    named = (line for line in lines if line.startswith(("fatal:", "error:", "ssh:")) or reports("git-login", line))
    detail, url = next(named, lines[0] if lines else "git printed no reason"), source.url
    did = f"git {verb} failed"
    if found := reports("git-submodule", output):
        url = found["url"] or ""
        path = os.path.relpath(tree / found["path"], tree)
        did = f"git cannot fetch the submodule {path}{' from ' if url else ''}{mask_credentials(url)}"
    hints = ["check the URL and the network", "a later run needs no network, because the commit is stored"]
    if reports("disk-full", output):
        hints = [DISK_HINT]
    elif reports("untrusted", output):
        hints = ["set GIT_SSL_CAINFO to a CA bundle that contains the CA of your proxy or server"]
    elif ssh := _SSH_URL.match(url):
        host = ssh["host"] or ssh["scp"]
        way_out = f"`git config --global url.https://{host}/.insteadOf {ssh[0]}`"
        hints[:1] = [f"without an SSH key for {host}, git can use HTTPS: {way_out}"]
    elif url and found:
        hints[:1] = [
            "correct the URL in .gitmodules, or replace it on this machine: `git config --global url.NEW.insteadOf OLD`"
        ]
    elif found:
        hints = ["push the commit to the repository of the submodule, or correct .gitmodules"]
    elif reports("git-login", output):
        hints = [hint_of("git-login")]
    return MissingToolError(
        f"{did}: {mask_credentials(detail)}", Code.FETCH_FAILED, where=mask_credentials(source.url), hints=hints
    )
