"""A git repository at one exact commit, with its submodules, kept for the next time and verified then."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

from filelock import FileLock

from builder.errors import FarmError, MissingToolError, UsageError
from builder.matrix.config import GitSource


def checkout(source: GitSource, *, cache: Path) -> Path:
    """Return a folder under `<cache>/git/` that holds exactly this commit and nothing else but its `.git`.

    A kept checkout is used again, without network, if git still finds it whole and untouched; else it is
    fetched anew. Raises UsageError when the repository has no such commit, and MissingToolError when there is
    no git or the repository cannot be reached.
    """
    if not re.fullmatch(r"[0-9a-f]{40}", source.revision):
        raise UsageError(
            f"{source.revision!r} is no full commit hash (40 hexadecimal digits); a branch or tag may move",
            where=source.url,
        )
    if not shutil.which("git"):
        raise MissingToolError("git is not on PATH", where=source.url, hints=("install git",))
    # The address is part of the name: submodules with relative addresses depend on it.
    name = f"{source.revision[:12]}-{hashlib.sha256(source.url.encode()).hexdigest()[:12]}"
    tree, aside = cache / "git" / name, cache / "git" / f".{name}"
    tree.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(tree.parent / f"{name}.lock"):
        if _untouched(tree, source):
            return tree
        shutil.rmtree(tree, ignore_errors=True)
        shutil.rmtree(aside, ignore_errors=True)  # of a run that was killed
        try:
            _fetch(source, aside)
            aside.rename(tree)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    return tree


def _untouched(tree: Path, source: GitSource) -> bool:
    if not (tree / ".git").exists():
        return False
    head = _git(source, tree, "rev-parse", "HEAD")
    status = _git(source, tree, "status", "--porcelain", "--ignored", "--ignore-submodules=none")
    return head.stdout.strip() == source.revision and status.returncode == 0 and not status.stdout.strip()


def _fetch(source: GitSource, aside: Path) -> None:
    aside.mkdir()
    _git(source, aside, "init", "--quiet", check=True)
    _git(source, aside, "remote", "add", "--", "origin", source.url, check=True)
    # Not every server hands out a commit by its hash; then everything it shows has to come.
    if _git(source, aside, "fetch", "--quiet", "--depth=1", "origin", source.revision).returncode:
        everything = ("+refs/heads/*:refs/remotes/origin/*", "+refs/tags/*:refs/tags/*")
        _git(source, aside, "fetch", "--quiet", "origin", *everything, check=True)
        if _git(source, aside, "cat-file", "-e", f"{source.revision}^{{commit}}").returncode:
            raise UsageError(
                f"the repository has no commit {source.revision}",
                where=source.url,
                hints=(
                    "correct `revision` in the recipe",
                    "a commit that only a fork or a deleted branch has is not found",
                ),
            )
    _git(source, aside, "checkout", "--quiet", "--detach", source.revision, check=True)
    if (aside / ".gitmodules").exists():
        update = ("submodule", "--quiet", "update", "--init", "--recursive")
        if _git(source, aside, *update, "--depth=1").returncode:
            # What came of a submodule is shallow, and would stay so: begin again.
            _git(source, aside, "submodule", "--quiet", "deinit", "--all", "--force", check=True)
            shutil.rmtree(aside / ".git" / "modules", ignore_errors=True)
            _git(source, aside, *update, check=True)
    if not _untouched(aside, source):
        raise MissingToolError(
            f"git did not leave the files of {source.revision} as they are in the repository",
            where=source.url,
            hints=("a filter (git-lfs?) or an attribute changes files on checkout; see `git config --list`",),
        )


def _git(source: GitSource, tree: Path, *words: str, check: bool = False) -> subprocess.CompletedProcess[str]:
    """Run git in `tree`, deaf to hooks, prompts and a surrounding repository; `check`: or raise."""
    settings = ["core.hooksPath=/dev/null", "core.autocrlf=false", "core.fsmonitor=false"]
    if source.url.startswith(("file://", "/")):
        # git refuses local submodules unless told otherwise; a recipe that is itself local has told so.
        settings.append("protocol.file.allow=always")
    environment = {k: v for k, v in os.environ.items() if k not in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")}
    environment |= {
        "GIT_TERMINAL_PROMPT": "0",
        "LC_ALL": "C",
        "GIT_CEILING_DIRECTORIES": str(tree.resolve().parent),
    }
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
        raise _failure(source, words[0], done.stderr)
    return done


def _failure(source: GitSource, verb: str, talk: str) -> FarmError:
    fatal = [line for line in talk.splitlines() if line.startswith(("fatal:", "error:"))]
    detail = (fatal or talk.strip().splitlines() or ["git gave no reason"])[0]
    return MissingToolError(
        f"git {verb} failed: {re.sub(r'//[^/@]*@', '//***@', detail)}",
        where=re.sub(r"//[^/@]*@", "//***@", source.url),
        hints=(
            "is the address right, and the network there?",
            "once fetched it is kept, and no network is needed for it again",
        ),
    )
