"""A recipe's source: what is taken, what names it, and what is refused before anything of it runs."""

import contextlib
import hashlib
import io
import itertools
import os
import shutil
import socket
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import pytest

from builder.errors import BuildfarmError, Code, MissingToolError, UsageError
from builder.matrix.config import GitSource, PathSource, Recipe, SdistSource, WheelSource
from builder.wheelfile import limits
from builder.wheels.sources.folder import source_files
from builder.wheels.sources.prepare import prepare_source, project_folder, source_digest
from tests.conftest import coded, git
from tests.refused import refused
from tests.unit.loopback import PackageIndex

Source = PathSource | SdistSource | GitSource | WheelSource


def recipe(source: Source, *patches: Path) -> Recipe:
    return Recipe("ext", "1.0", folder=Path("/"), source=source, patches=patches)


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def tree(root: Path) -> dict[str, str]:
    return {p.relative_to(root).as_posix(): p.read_text() for p in sorted(root.rglob("*")) if p.is_file()}


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


class Take(Protocol):
    """Prepares a source, with these patches, in a new folder; a failure leaves the folder empty."""

    def __call__(self, source: Source, *patches: Path) -> Path: ...


@pytest.fixture
def take(tmp_path: Path, cache: Path) -> Take:
    number = itertools.count()

    def taken(source: Source, *patches: Path) -> Path:
        folder = tmp_path / f"taken-{next(number)}"
        folder.mkdir()
        try:
            prepare_source(recipe(source, *patches), folder, cache=cache)
        except BuildfarmError:
            assert not list(folder.iterdir())
            raise
        return folder

    return taken


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "ext", {"setup.py": "setup\n", "src/op.cpp": "op\n", "extension.yaml": "name: ext\n"})


LEFTOVERS = [
    *("build/lib/op.o", "dist/ext.whl", "tests/test_op.py", "ext.egg-info/PKG-INFO", "src/ext.egg-info/PKG-INFO"),
    *("src/__pycache__/a.pyc", "src/_C.abi3.so", ".git/HEAD", "src/.pytest_cache/x", ".venv/pyvenv.cfg"),
    *("matrix.yaml", "facts.yaml", "buildfarm.lock", "buildfarm-report.html", "gate.pyz", "relabelled/ext.whl"),
    *(".github/workflows/buildfarm.yml", "tools/buildfarm/builder/gate/run.py", "tools/buildfarm/pyproject.toml"),
]


def test_op_cases_and_what_they_import_can_neither_cause_nor_need_a_rebuild(folder: Path, take: Take) -> None:
    ours = recipe(PathSource(folder))
    before = source_digest(ours)
    write(folder, {"references/plain.py": "1"})
    assert source_digest(ours) != before, "without cases.py it is a folder like any other"
    write(folder, {"cases.py": "CASES = []"})
    assert source_digest(ours) == before
    assert tree(take(ours.source)) == {"setup.py": "setup\n", "src/op.cpp": "op\n"}


IGNORED = {
    "venv/pyvenv.cfg": "home = /usr/bin",
    "venv/lib/a.py": "",
    "conda/conda-meta/history": "",
    "conda/include/b.h": "",
    "store/CACHEDIR.TAG": "",
    "store/builds/c.cpp": "",
    "out/.gitignore": "# output\n*\n",
    "out/simple/index.html": "",
}


@pytest.mark.parametrize("in_git", [False, True])
@pytest.mark.parametrize("files", [dict.fromkeys(LEFTOVERS, "left over"), IGNORED], ids=["left over", "ignored"])
def test_leftovers_environments_caches_and_output_folders_are_not_source(
    folder: Path, take: Take, in_git: bool, files: dict[str, str]
) -> None:
    if in_git:
        git(folder, "init", "--quiet")
    ours = recipe(PathSource(folder))
    before = source_digest(ours)
    write(folder, {name: text for name, text in files.items() if not (in_git and name == ".git/HEAD")})
    assert source_digest(ours) == before
    assert tree(take(ours.source)) == {"setup.py": "setup\n", "src/op.cpp": "op\n"}


@pytest.mark.parametrize("in_git", [False, True])
def test_the_folder_of_another_recipe_is_not_source(folder: Path, take: Take, in_git: bool) -> None:
    """`init` writes a recipe whose source is the whole project; `add ./other` then adds one inside."""
    if in_git:
        git(folder, "init", "--quiet")
    ours = recipe(PathSource(folder))
    before = source_digest(ours)
    other = "name: other\nversion: 1.0\nsource: {path: .}\nabi: cpython\nimports: [other]\n"
    write(folder, {"other/extension.yaml": other, "other/cases.py": "", "other/csrc/other.cpp": "1"})
    assert source_digest(ours) == before
    assert tree(take(ours.source)) == {"setup.py": "setup\n", "src/op.cpp": "op\n"}
    assert tree(take(PathSource(folder / "other"))) == {"csrc/other.cpp": "1"}
    for text in ("name: of something else\n", "a: [", other.replace("path: .", "path: ..")):
        write(folder, {"data/extension.yaml": text, "data/table.txt": "1"})
        assert source_digest(ours) != before, "the recipe of the whole project can be in a folder below, with code"


def test_files_that_git_ignores_are_not_source_and_tracked_ones_are(tmp_path: Path, folder: Path, take: Take) -> None:
    git(folder, "init", "--quiet")
    write(folder, {".gitignore": "*.log\ngenerated/\n", "kept.log": "tracked", "gone.cpp": ""})
    git(folder, "add", "--force", ".")
    inner = write(tmp_path / "inner", {"inner.h": "", "inner.log": "tracked"})
    git(inner, "init", "--quiet")
    git(inner, "add", ".")
    git(inner, "commit", "--quiet", "-m", "inner")
    git(folder, "submodule", "add", str(inner), "third_party/inner")
    (folder / "gone.cpp").unlink()
    write(folder, {"build.log": "1", "src/a.log": "2", "generated/x.cpp": "3", "new.cpp": "4"})
    target = take(PathSource(folder))
    assert set(tree(target)) == {
        ".gitignore", ".gitmodules", "kept.log", "new.cpp", "setup.py", "src/op.cpp",
        "third_party/inner/inner.h", "third_party/inner/inner.log",
    }  # fmt: skip


def test_a_source_in_a_folder_that_git_ignores_is_taken_whole(tmp_path: Path, folder: Path, take: Take) -> None:
    git(tmp_path, "init", "--quiet")
    write(tmp_path, {".gitignore": "*\n"})
    assert tree(take(PathSource(folder))) == {"setup.py": "setup\n", "src/op.cpp": "op\n"}


CHANGES: dict[str, Callable[[Path], object]] = {
    "edited": lambda folder: write(folder, {"src/op.cpp": "OP\n"}),
    "renamed": lambda folder: (folder / "src" / "op.cpp").rename(folder / "src" / "op.cc"),
    "executable": lambda folder: (folder / "setup.py").chmod(0o755),
    "added": lambda folder: write(folder, {"src/tests/a.py": "", "src/build/b.py": ""}),
    "linked": lambda folder: (folder / "link.py").symlink_to("setup.py"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_can_change_the_wheel_changes_the_name_and_is_taken(
    folder: Path, take: Take, change: Callable[[Path], object]
) -> None:
    ours = recipe(PathSource(folder))
    before = source_digest(ours)
    change(folder)
    after = source_digest(ours)
    assert after != before
    target = take(ours.source)
    # The tree that a build sees has the same name, whatever was left behind.
    assert source_digest(recipe(PathSource(target))) == after


def test_the_name_does_not_depend_on_place_time_or_umask(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "deep" / "copy"
    shutil.copytree(folder, other, copy_function=shutil.copyfile)
    (other / "setup.py").chmod(0o600)
    os.utime(other / "setup.py", (1, 1))
    assert source_digest(recipe(PathSource(folder))) == source_digest(recipe(PathSource(other)))


def test_a_folder_that_cannot_be_taken_whole_is_refused(folder: Path, take: Take) -> None:
    (folder / "secret").symlink_to("/etc/hostname")
    with refused(Code.SOURCE_UNSAFE, "/etc/hostname"):
        take(PathSource(folder))
    shutil.rmtree(folder)
    with refused(Code.NO_SUCH_FILE):
        take(PathSource(folder))


@pytest.mark.parametrize("name", ["p", "sub/p", "setup.py", "build/p", "__pycache__/p", "link"])
@pytest.mark.parametrize("kind", ["pipe", "socket"])
def test_a_pipe_or_a_socket_is_never_opened(folder: Path, take: Take, name: str, kind: str) -> None:
    """`mkfifo p` in a source folder: the digest waited for ever for somebody to write into the pipe."""
    special = folder / ("build/p" if name == "link" else name)
    special.parent.mkdir(exist_ok=True)
    special.unlink(missing_ok=True)
    if name == "link":
        (folder / "link").symlink_to("build/p")
    if kind == "pipe":
        os.mkfifo(special)
    else:
        with contextlib.chdir(special.parent), socket.socket(socket.AF_UNIX) as server:
            server.bind(special.name)
    assert source_digest(recipe(PathSource(folder)))
    assert (name in dict(source_files(folder))) is (name == "link")
    assert not (take(PathSource(folder)) / name).exists()


GOOD = """\
--- a/setup.py
+++ b/setup.py
@@ -1 +1 @@
-setup
+set up
"""
BAD = GOOD.replace("-setup", "-something else")
BAD_SECOND = (
    GOOD
    + """\
--- a/src/op.cpp
+++ b/src/op.cpp
@@ -1 +1 @@
-nop
+op2
"""
)


def test_patches_are_applied_in_order(folder: Path, take: Take, tmp_path: Path) -> None:
    again = GOOD.replace("+set up", "+set up twice").replace("-setup", "-set up")
    write(tmp_path, {"1.patch": GOOD, "2.patch": again})
    assert tree(take(PathSource(folder), tmp_path / "1.patch", tmp_path / "2.patch")) == {
        "setup.py": "set up twice\n",
        "src/op.cpp": "op\n",
    }
    assert (folder / "setup.py").read_text() == "setup\n"


@pytest.mark.parametrize("hook", [False, True], ids=["below it", "called from its hook"])
def test_a_target_inside_a_repository_is_patched_all_the_same(
    folder: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hook: bool
) -> None:
    """There git takes a patch's paths from the root of the repository, and leaves out what it cannot find."""
    outer = tmp_path / "outer"
    (outer / "in").mkdir(parents=True)
    git(outer, "init", "-q")
    if hook:
        monkeypatch.setenv("GIT_DIR", str(outer / ".git"))
        monkeypatch.setenv("GIT_WORK_TREE", str(outer))
    write(tmp_path, {"1.patch": "diff --git a/setup.py b/setup.py\n" + GOOD})
    prepare_source(recipe(PathSource(folder), tmp_path / "1.patch"), outer / "in", cache=cache)
    assert (outer / "in" / "setup.py").read_text() == "set up\n"


#: What `diff -u` wrote for a file of the lines 1 to 30, of which 15 and 25 changed.
TWO_HUNKS = """\
--- a/long.txt
+++ b/long.txt
@@ -12,7 +12,7 @@
 12
 13
 14
-15
+fifteen
 16
 17
 18
@@ -22,7 +22,7 @@
 22
 23
 24
-25
+twenty-five
 26
 27
 28
"""
LONG = {"long.txt": "".join(f"{n}\n" for n in range(1, 31))}


@pytest.mark.parametrize(
    ("files", "text", "says"),
    [
        pytest.param({}, BAD, r"setup\.py at line 1$", id="first hunk"),
        pytest.param({}, BAD_SECOND, r"src/op\.cpp at line 1$", id="second file"),
        pytest.param({}, "no patch at all\n", "does not apply: ", id="no patch"),
        pytest.param({}, BAD.replace("setup.py", "caf\xe9.py"), "does not apply: ", id="a name that is not UTF-8"),
        pytest.param(
            LONG,
            "--- a/long.txt\n+++ b/long.txt\n@@ -1,7 +1,7 @@\n x\n 2\n 3\n-4\n+four\n 5\n 6\n 7\n",
            r"long\.txt at line 1",
            id="another neighbour",
        ),
        pytest.param(
            {"long.txt": LONG["long.txt"].replace("\n27\n", "\ntwenty-seven\n")},
            TWO_HUNKS,
            r"^\S+/fix\.patch: the patch does not apply: long\.txt at line 22$",
            id="second hunk",
        ),
        pytest.param(
            {"setup.py": "setup\r\n"},
            GOOD,
            "the patch has LF at the end of its lines, and setup.py has CRLF",
            id="CRLF",
        ),
        pytest.param(
            {}, GOOD.replace("\n", "\r\n"), "patch has CRLF at the end of its lines, and setup.py has LF", id="LF"
        ),
        pytest.param({"setup.py": "setup\r\n"}, BAD, r"setup\.py at line 1$", id="not only CRLF"),
        pytest.param(  # the user's settings of git ignore white space
            {"f.c": "int  f() {\n  b;\n}\n"},
            "--- a/f.c\n+++ b/f.c\n@@ -1,3 +1,3 @@\n int f() {\n-  b;\n+  c;\n }\n",
            r"f\.c at line 1$",
            id="white space",
        ),
    ],
)
def test_a_patch_that_does_not_fit_exactly_is_refused(
    folder: Path,
    take: Take,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    files: dict[str, str],
    text: str,
    says: str,
) -> None:
    write(tmp_path, {"home/.gitconfig": "[apply]\n\tignoreWhitespace = change\n"})
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name, content in files.items():
        (folder / name).write_bytes(content.encode())
    patch = tmp_path / "fix.patch"
    patch.write_bytes(text.encode("latin-1"))
    with pytest.raises(UsageError, match=says, check=coded(Code.PATCH_FAILED)) as caught:
        take(PathSource(folder), patch)
    assert caught.value.where == str(patch)
    assert ("`core.autocrlf`" in caught.value.hints[0]) is ("at the end of its lines" in says)


def test_a_patch_with_all_of_its_context_at_different_lines_is_applied(
    folder: Path, take: Take, tmp_path: Path
) -> None:
    write(folder, {"long.txt": "100\n" * 5 + LONG["long.txt"]})
    write(tmp_path, {"1.patch": GOOD, "fix.patch": TWO_HUNKS})
    target = take(PathSource(folder), tmp_path / "1.patch", tmp_path / "fix.patch")
    assert (target / "long.txt").read_text().split()[19:20] == ["fifteen"]


def test_patches_are_part_of_the_name(folder: Path, tmp_path: Path) -> None:
    write(tmp_path, {"1.patch": GOOD, "2.patch": BAD})
    one, two = tmp_path / "1.patch", tmp_path / "2.patch"
    names = {
        source_digest(recipe(PathSource(folder), *patches)) for patches in ((), (one,), (two,), (one, two), (two, one))
    }
    assert len(names) == 5
    with pytest.raises(UsageError, check=coded(Code.PATH_NOT_USABLE)):
        source_digest(recipe(PathSource(folder), tmp_path / "3.patch"))


def sdist(*members: tuple[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            info.mode = 0o755 if name.endswith(".sh") else 0o600
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


BOMB_SETUP = b"open(__import__('os').environ['CANARY'], 'w')\n"
ARCHIVE = sdist(
    ("my_ext-1.0/PKG-INFO", b"Metadata-Version: 2.1\nName: my-ext\nVersion: 1.0\n"),
    ("my_ext-1.0/setup.py", BOMB_SETUP),
    ("my_ext-1.0/tool.sh", b"#!/bin/sh\n"),
)
SHA256 = hashlib.sha256(ARCHIVE).hexdigest()
SDIST = SdistSource("my-ext", "1.0", SHA256)


@pytest.fixture
def index(index: PackageIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PackageIndex:
    """The index of these tests, without uv's cache; the archive makes a file if anything runs it."""
    monkeypatch.setenv("UV_NO_CACHE", "1")
    monkeypatch.setenv("CANARY", str(tmp_path / "canary"))
    return index


def offer(index: PackageIndex, data: bytes = ARCHIVE, digest: str = "") -> Path:
    file = index.root / "default" / "my_ext-1.0.tar.gz"
    file.parent.mkdir(parents=True)
    file.write_bytes(data)
    index.digests[file.name] = digest
    return file


@pytest.mark.parametrize("digest", ["", SHA256], ids=["index without digests", "index with digests"])
def test_an_sdist_is_fetched_once_and_never_run(
    index: PackageIndex, take: Take, cache: Path, tmp_path: Path, digest: str
) -> None:
    offer(index, digest=digest)
    target = take(SDIST)
    assert sorted(tree(target)) == ["PKG-INFO", "setup.py", "tool.sh"]
    assert not (tmp_path / "canary").exists()
    assert (target / "tool.sh").stat().st_mode & 0o777 == 0o755
    assert (target / "setup.py").stat().st_mode & 0o777 == 0o644
    assert (cache / "sdists" / SHA256 / "my_ext-1.0.tar.gz").read_bytes() == ARCHIVE
    assert len(list((cache / "sdists").iterdir())) == 1
    index.requested.clear()
    other = take(SDIST)
    assert tree(other) == tree(target)
    assert not index.requested


def test_a_kept_sdist_that_was_damaged_is_fetched_anew(index: PackageIndex, take: Take, cache: Path) -> None:
    offer(index)
    kept = cache / "sdists" / SHA256 / "my_ext-1.0.tar.gz"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(ARCHIVE[:-9])
    take(SDIST)
    assert kept.read_bytes() == ARCHIVE


def test_another_digest_than_the_recipes_is_refused(
    index: PackageIndex, take: Take, cache: Path, tmp_path: Path
) -> None:
    forged = ARCHIVE + b"\0"
    found = hashlib.sha256(forged).hexdigest()
    offer(index, forged, found)
    with pytest.raises(MissingToolError, match=f"{found}.*{SHA256}") as caught:
        take(SDIST)
    assert caught.value.where == "my-ext 1.0"
    assert not list(cache.rglob("*.gz"))
    assert not (tmp_path / "canary").exists()


@pytest.mark.parametrize(
    ("source", "says"),
    [
        pytest.param(replace(SDIST, version="2.0"), "it has no such version", id="no such version"),
        pytest.param(replace(SDIST, project="absent"), "it has no project of this name", id="no such project"),
        pytest.param(
            replace(SDIST, version="1.0\n--index-url x"), "not a project name with a version", id="no version at all"
        ),
    ],
)
def test_what_the_index_does_not_have_is_the_recipes_fault(
    index: PackageIndex, take: Take, source: SdistSource, says: str
) -> None:
    offer(index)
    with pytest.raises(UsageError, match=says):
        take(source)


@pytest.mark.usefixtures("index")
def test_without_network_it_says_what_was_wanted_and_where(take: Take, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://me:secret@127.0.0.1:9/simple")
    with pytest.raises(MissingToolError) as caught:
        take(SDIST)
    whole = "\n".join([str(caught.value), *caught.value.hints])
    assert "my-ext 1.0" in whole
    assert "UV_DEFAULT_INDEX=http://***@127.0.0.1:9/simple" in whole
    assert "secret" not in whole


def test_a_file_that_is_listed_but_gone_cannot_be_had(index: PackageIndex, take: Take) -> None:
    file = offer(index)
    file.unlink()
    file.symlink_to("gone")  # it is listed
    with refused(Code.NETWORK_UNREACHABLE, "404") as caught:
        take(SDIST)
    assert "my_ext-1.0.tar.gz" in str(caught.value)


@pytest.mark.parametrize("setting", ["UV_DEFAULT_INDEX", "PIP_INDEX_URL"])
def test_an_index_with_a_password_gets_it(
    index: PackageIndex, take: Take, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    offer(index)
    monkeypatch.delenv("UV_DEFAULT_INDEX")
    monkeypatch.setenv(setting, index.default.replace("://", "://me:pass@"))
    take(SDIST)
    assert index.logins["/default/my_ext-1.0.tar.gz"] == "Basic bWU6cGFzcw=="


@pytest.mark.usefixtures("index")
def test_a_folder_of_archives_will_do(take: Take, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An air-gapped machine: UV_FIND_LINKS and no index."""
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "my_ext-1.0.tar.gz").write_bytes(ARCHIVE)
    monkeypatch.delenv("UV_DEFAULT_INDEX")
    monkeypatch.setenv("UV_NO_INDEX", "1")
    monkeypatch.setenv("UV_FIND_LINKS", str(tmp_path / "links"))
    target = take(SDIST)
    assert (target / "setup.py").exists()


def hostile_tar(*infos: tuple[str, dict[str, Any]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, fields in (("e-1/ok", {}), *infos):
            info = tarfile.TarInfo(name)
            for field, value in fields.items():
                setattr(info, field, value)
            tar.addfile(info, io.BytesIO(b"x" * info.size))
    return out.getvalue()


SYM, HARD = {"type": tarfile.SYMTYPE}, {"type": tarfile.LNKTYPE}
HOSTILE = [
    pytest.param(hostile_tar(("/tmp/evil", {})), "exactly one top folder", id="absolute"),
    pytest.param(hostile_tar(("e-1/../../evil", {})), "would be extracted to .* outside", id="dot dot"),
    pytest.param(hostile_tar(("e-1/l", SYM | {"linkname": "/etc"})), "absolute path", id="link out"),
    pytest.param(hostile_tar(("e-1/l", SYM | {"linkname": "../.."})), "would link to", id="link far up"),
    pytest.param(hostile_tar(("e-1/l", SYM | {"linkname": ".."})), "l is a link that leads out", id="link up"),
    pytest.param(
        hostile_tar(
            ("e-1/d", {"type": tarfile.DIRTYPE}),
            ("e-1/d/a", SYM | {"linkname": ".."}),
            ("e-1/b", SYM | {"linkname": "d/a/../.."}),
        ),
        "would link to|is a link that leads out",
        id="link through a link",
    ),
    pytest.param(hostile_tar(("e-1/h", HARD | {"linkname": "/etc/passwd"})), "absolute path", id="hard link out"),
    pytest.param(
        hostile_tar(("e-1/h", HARD | {"linkname": "e-1/no"})), "not a readable archive", id="hard link to nothing"
    ),
    pytest.param(hostile_tar(("e-1/c", {"type": tarfile.CHRTYPE})), "'e-1/c' is a special file", id="device"),
    pytest.param(hostile_tar(("e-1/p", {"type": tarfile.FIFOTYPE})), "'e-1/p' is a special file", id="pipe"),
    pytest.param(hostile_tar(("e-1/ok/below", {})), "not a readable archive", id="file under a file"),
    pytest.param(hostile_tar(("e-1/" + "n" * 256, {})), "not a readable archive", id="long name"),
    pytest.param(hostile_tar(("other/f", {})), "exactly one top folder", id="two tops"),
    pytest.param(hostile_tar(("f", {})), "exactly one top folder", id="file at the top"),
    pytest.param(hostile_tar(("e-1/big", {"size": 3000})), "more than", id="too big"),
    pytest.param(hostile_tar(*((f"e-1/{n}", {}) for n in range(10))), "or 8 members", id="too many"),
    pytest.param(ARCHIVE[:60], "not a readable archive", id="cut off"),
    pytest.param(b"<html>not found</html>", "not a readable archive", id="no archive"),
    pytest.param(sdist(), "exactly one top folder", id="empty"),
]


def keep(data: bytes, cache: Path) -> SdistSource:
    """Put an archive into the cache, as if fetched: what it is named by is right, what is in it is not."""
    digest = hashlib.sha256(data).hexdigest()
    (cache / "sdists" / digest).mkdir(parents=True)
    (cache / "sdists" / digest / "e-1.tar.gz").write_bytes(data)
    return SdistSource("e", "1", digest)


@pytest.mark.parametrize(("data", "says"), HOSTILE)
def test_hostile_archives_are_refused_and_leave_nothing(
    take: Take, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, says: str
) -> None:
    monkeypatch.setattr(limits, "MAX_SOURCE_BYTES", 2048)
    monkeypatch.setattr(limits, "MAX_MEMBERS", 8)
    around = set(tmp_path.iterdir())
    source = keep(data, cache)
    with pytest.raises(UsageError, match=says) as caught:
        take(source)
    assert caught.value.exit_code == 2
    assert caught.value.where == "e-1.tar.gz"
    assert set(tmp_path.iterdir()) - around == {cache, tmp_path / "taken-0"}
    assert not Path("/tmp/evil").exists()


def test_harmless_links_are_taken(take: Take, cache: Path) -> None:
    data = hostile_tar(
        ("e-1/sub/l", SYM | {"linkname": "../ok"}),
        ("e-1/h", HARD | {"linkname": "e-1/ok"}),
        ("e-1/d", {"type": tarfile.DIRTYPE, "mode": 0o2755}),
        ("e-1/run", {"mode": 0o4775}),
    )
    target = take(keep(data, cache))
    assert [(target / name).stat().st_mode & 0o7777 for name in ("run", "ok")] == [0o755, 0o644]
    assert (target / "sub" / "l").readlink() == Path("../ok")
    assert (target / "h").samefile(target / "ok")


@pytest.fixture(scope="module")
def repositories(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder with a library and a repository that has it as a submodule; the latter's first commit."""
    repos = tmp_path_factory.mktemp("repos")
    lib = write(repos / "lib", {"lib.h": "lib 1\n"})
    git(repos, "init", "-q", "lib")
    git(lib, "add", ".")
    git(lib, "commit", "-qm", "1")
    ours = write(repos / "ours", {"setup.py": "setup\n", "py/op.py": "op\n", "build/keep.sh": "x\n"})
    git(repos, "init", "-q", "ours")
    (ours / "py" / "LICENSE").symlink_to("../setup.py")
    (ours / "py" / "own").symlink_to("op.py")
    git(ours, "submodule", "--quiet", "add", "../lib", "third/lib")
    git(ours, "add", ".")
    git(ours, "commit", "-qm", "1")
    first = git(ours, "rev-parse", "HEAD")
    write(ours, {"setup.py": "changed\n"})
    git(ours, "commit", "-qam", "2")
    write(lib, {"lib.h": "lib 2\n"})
    git(lib, "commit", "-qam", "2")
    return repos, first


@pytest.fixture
def repository(repositories: tuple[Path, str], tmp_path: Path) -> tuple[Path, str]:
    """A copy of its own for each test: the repository, and a commit that is not its head."""
    shutil.copytree(repositories[0], tmp_path / "repos", symlinks=True)
    return tmp_path / "repos" / "ours", repositories[1]


@pytest.mark.parametrize("by_hash", [True, False], ids=["server gives any commit", "server gives heads only"])
def test_a_commit_is_taken_with_its_submodules(
    repository: tuple[Path, str], take: Take, by_hash: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, first = repository
    if not by_hash:  # as servers did before version 2 of the protocol, and some still do
        monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
        monkeypatch.setenv("GIT_CONFIG_KEY_0", "protocol.version")
        monkeypatch.setenv("GIT_CONFIG_VALUE_0", "0")
    source = GitSource(ours.as_uri(), first)
    target = take(source)
    assert (target / "setup.py").read_text() == "setup\n"
    assert (target / "third" / "lib" / "lib.h").read_text() == "lib 1\n"
    assert (target / "build" / "keep.sh").exists()  # git says what is source here
    assert not list(target.rglob(".git"))
    # And again with the repository gone.
    shutil.rmtree(ours.parent)
    other = take(source)
    assert tree(other) == tree(target)


@pytest.mark.parametrize(
    ("url", "said", "reason", "hint"),
    [
        (
            "git@git.invalid:org/lib.git",
            "git cannot fetch the submodule third/lib from git@git.invalid:org/lib.git: ",
            "git@git.invalid: Permission denied (publickey).",
            "`git config --global url.https://git.invalid/.insteadOf git@git.invalid:`",
        ),
        (
            "../none",
            "git cannot fetch the submodule third/lib from file://",
            "does not appear to be a git",
            ".gitmodules",
        ),
    ],
)
def test_a_submodule_that_cannot_be_fetched_is_named_with_its_url(
    repository: tuple[Path, str],
    take: Take,
    monkeypatch: pytest.MonkeyPatch,
    url: str,
    said: str,
    reason: str,
    hint: str,
) -> None:
    ours, _ = repository
    monkeypatch.setenv("GIT_SSH_COMMAND", f"sh -c 'echo \"{reason}\" >&2; exit 255'")
    monkeypatch.setenv("GIT_SSH_VARIANT", "ssh")
    git(ours, "config", "-f", ".gitmodules", "submodule.third/lib.url", url)
    git(ours, "commit", "-qam", "3")
    source = GitSource(ours.as_uri(), git(ours, "rev-parse", "HEAD"))
    with pytest.raises(MissingToolError, check=coded(Code.FETCH_FAILED)) as caught:
        take(source)
    assert said in str(caught.value)
    assert reason in str(caught.value)
    assert hint in caught.value.hints[0]


def test_a_commit_that_the_repository_of_a_submodule_lacks(repository: tuple[Path, str], take: Take) -> None:
    ours, _ = repository
    git(ours, "update-index", "--cacheinfo", f"160000,{'a' * 40},third/lib")
    git(ours, "commit", "-qm", "3")
    source = GitSource(ours.as_uri(), git(ours, "rev-parse", "HEAD"))
    with pytest.raises(MissingToolError, check=coded(Code.FETCH_FAILED)) as caught:
        take(source)
    assert "git cannot fetch the submodule third/lib: " in str(caught.value)
    assert "not our ref" in str(caught.value)
    assert caught.value.hints == ("push the commit to the repository of the submodule, or correct .gitmodules",)


def test_a_subdirectory_is_prepared_with_the_files_above_it_and_links_out_of_it_become_files(
    repository: tuple[Path, str], take: Take
) -> None:
    ours, first = repository
    source = GitSource(ours.as_uri(), first, "py")
    target = take(source)
    folder = project_folder(recipe(source), target)
    assert folder == target / "py"
    assert tree(folder) == {"op.py": "op\n", "own": "op\n", "LICENSE": "setup\n"}
    assert (folder / "own").is_symlink()
    assert not (folder / "LICENSE").is_symlink()
    every, found = tree(take(GitSource(ours.as_uri(), first))), tree(target)
    assert every.keys() == found.keys() | {"py/LICENSE"}
    assert all(found[name] == text for name, text in every.items() if not name.startswith("py/"))


@pytest.mark.parametrize("to", ["outside", ".", "absent"])
def test_a_subdirectory_that_is_a_link_out_of_the_repository_is_refused(
    repository: tuple[Path, str], take: Take, tmp_path: Path, to: str
) -> None:
    ours, _ = repository
    write(tmp_path / "outside", {"secret": "x"})
    (ours / "sub").symlink_to(tmp_path / "outside" if to == "outside" else "py")
    git(ours, "add", "sub")
    git(ours, "commit", "-qm", "link")
    source = GitSource(ours.as_uri(), git(ours, "rev-parse", "HEAD"), "sub")
    if to == ".":
        assert {"sub/op.py", "py/op.py"} <= set(tree(take(source)))
        return
    code = Code.NO_SUCH_FILE if to == "absent" else Code.SOURCE_UNSAFE
    with pytest.raises(UsageError, check=coded(code)):
        take(replace(source, subdirectory=to) if to == "absent" else source)


@pytest.mark.parametrize("harmed", ["setup.py", "sitecustomize.py", "third/lib/lib.h", ""])
def test_a_kept_checkout_that_was_touched_is_fetched_anew(
    repository: tuple[Path, str], take: Take, cache: Path, harmed: str
) -> None:
    ours, first = repository
    source = GitSource(ours.as_uri(), first)
    target = take(source)
    (kept,) = [p for p in (cache / "git").iterdir() if p.is_dir()]
    if harmed:
        write(kept, {harmed: "harm\n"})
    else:
        git(kept, "commit", "-q", "--allow-empty", "-m", "other")
    assert tree(take(source)) == tree(target)


def test_a_run_killed_in_the_middle_does_no_harm(repository: tuple[Path, str], take: Take, cache: Path) -> None:
    ours, first = repository
    source = GitSource(ours.as_uri(), first)
    take(source)
    (kept,) = [p for p in (cache / "git").iterdir() if p.is_dir()]
    half = kept.rename(kept.with_name(f".{kept.name}"))
    (half / "setup.py").unlink()
    assert (take(source) / "setup.py").read_text() == "setup\n"
    assert not half.exists()


GIT_FAULTS = {
    "branch": (UsageError, "{url}", "main", r"has no commit main"),
    "short hash": (MissingToolError, "{url}", "{short}", r"the checked-out files differ"),
    "no such commit": (UsageError, "{url}", "0" * 40, r"has no commit 0{40}"),
    "no repository": (MissingToolError, "{url}-absent", "{first}", r"git fetch failed: fatal: "),
    "no server": (MissingToolError, "http://me:secret@127.0.0.1:9/x", "{first}", r"git fetch failed: fatal: "),
    "an option": (BuildfarmError, "--upload-pack=touch /tmp/evil", "{first}", r"git \w+ failed"),
}


@pytest.mark.parametrize("fault", GIT_FAULTS)
def test_a_commit_that_cannot_be_had(repository: tuple[Path, str], take: Take, cache: Path, fault: str) -> None:
    ours, first = repository
    error, url, revision, says = GIT_FAULTS[fault]
    known = {"url": ours.as_uri(), "first": first, "short": first[:12]}
    source = GitSource(url.format(**known), revision.format(**known))
    with pytest.raises(error, match=says) as caught:
        take(source)
    assert "secret" not in str(caught.value)
    assert not [p for p in (cache / "git").glob("*") if p.is_dir()]
    assert not Path("/tmp/evil").exists()


def test_without_git_it_says_so(folder: Path, take: Take, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"fix.patch": GOOD})
    monkeypatch.setenv("PATH", "")
    with refused(Code.PACKAGE_MISSING):
        take(GitSource("https://example.org/a", "1" * 40))
    with refused(Code.PACKAGE_MISSING):
        take(PathSource(folder), tmp_path / "fix.patch")
    take(PathSource(folder))  # no patches, no git


def test_the_names_of_downloads_need_no_network(cache: Path) -> None:
    sources: list[SdistSource | GitSource] = [
        SDIST,
        replace(SDIST, sha256="0" * 64),
        GitSource("https://example.org/a", "1" * 40),
        GitSource("https://example.org/a", "2" * 40),
        GitSource("https://example.org/a", "2" * 40, "sub"),
    ]
    names = [source_digest(recipe(source)) for source in sources]
    assert len(set(names)) == len(names)
    # A mirror of the same commit is the same source.
    assert source_digest(recipe(GitSource("https://example.org/b", "2" * 40))) == names[3]
    assert not cache.exists()


def test_what_buildfarm_writes_is_source_if_git_tracks_it(folder: Path) -> None:
    ours = recipe(PathSource(folder))
    git(folder, "init", "--quiet")
    before = source_digest(ours)
    write(folder, {"gate.pyz": ""})
    assert source_digest(ours) == before
    git(folder, "add", "gate.pyz")
    assert source_digest(ours) != before


@pytest.mark.parametrize(
    ("name", "text", "taken"),
    [
        ("setup.py", 'setup(name="t0", packages=["t0", "tests", "build.x"])', {"tests", "build"}),
        ("setup.py", 'setup(packages=["t0"] + ["tests.unit"])', {"tests"}),
        ("pyproject.toml", '[tool.setuptools]\npackages = [\n  "t0",\n  "dist",\n]\n', {"dist"}),
        ("setup.cfg", "[options]\npackages =\n    t0\n    tests\ninstall_requires =\n    build\n", {"tests"}),
        ("setup.py", 'setup(packages=find_packages(exclude=["tests", "build"]))', set()),
        ("setup.py", 'setup(packages=["t0.tests", "tests_of_mine"])', set()),
        ("setup.cfg", "[options]\npackages = find:\n[options.packages.find]\nexclude =\n    tests\n", set()),
    ],
)
def test_packages_of_the_project_are_source(folder: Path, take: Take, name: str, text: str, taken: set[str]) -> None:
    write(folder, {name: text} | {f"{top}/a.py": "" for top in ("tests", "build", "dist")})
    target = take(PathSource(folder))
    assert {path.name for path in target.iterdir()} & {"tests", "build", "dist"} == taken
