"""The scripts that put the object cache before the compilers, with a stand-in for sccache and the real g++."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from builder.images.files import templates
from builder.wheels.object_cache import cache_variables, compiler_variables
from builder.wheels.objects import read_objects

#: What is asked of it it writes down. `kind` decides the key of a compile: all of the text, or as ccache 4.11 has it,
#: the text for the GPU, which lacks what is under `#ifndef __CUDA_ARCH__`.
SCCACHE = """#!/bin/sh
"exec" "{python}" "$0" "$@"  # no space may stand in a first line's path; to Python this is a string
import hashlib, os, re, shutil, socket, subprocess, sys
from pathlib import Path
kind, cache = {kind!r}, Path(os.environ["SCCACHE_DIR"])
asked = sys.argv[1:]
if asked == ["--version"]:
    print("sccache 0.16.0")
elif asked == ["--start-server"]:
    if kind == "broken":
        sys.exit("sccache: error: no such bucket")
    socket.socket(socket.AF_UNIX).bind(os.environ["SCCACHE_SERVER_UDS"])
    (cache / "started").open("a").write("x")
elif asked[0].startswith("--"):
    print("{{}}")
else:
    source = next(word for word in asked[1:] if word.endswith((".cpp", ".cu")))
    text = Path(source).read_text()
    if kind == "stale":
        text = re.sub(r"#ifndef __CUDA_ARCH__.*?#endif", "", text, flags=re.S)
    kept = cache / hashlib.sha256(text.encode()).hexdigest()
    (cache / "compiles").open("a").write("x")
    if not kept.exists():
        status = subprocess.run(asked).returncode
        if status:
            sys.exit(status)
        shutil.copy(asked[asked.index("-o") + 1], kept)
    shutil.copy(kept, asked[asked.index("-o") + 1])
"""

TELL = '#!/bin/sh\nprintf \'%s\\n\' "$0" "$PATH" "$@"\n'


class Place:
    """A build's folder with the object cache's scripts, and what is set for them."""

    def __init__(self, folder: Path, path: str) -> None:
        self.folder = folder
        self.kept = folder / "cache" / "kept"
        self.objects, self.told = folder / "objects", folder / "told"
        program = folder / "sccache"
        self.environ = {
            **cache_variables(str(self.objects), str(self.told), str(self.kept), str(folder / "server")),
            **compiler_variables(
                str(self.objects),
                toolkit=str(folder / "toolkit"),
                site=str(folder),
                cc=shutil.which("gcc") or "gcc",
                cxx=shutil.which("g++") or "g++",
                path=path,
            ),
            "BUILDFARM_SCCACHE": str(program),
        }

    def sccache(self, text: str) -> None:
        """Put a program in sccache's place."""
        program = self.folder / "sccache"
        program.write_text(text)
        program.chmod(0o755)

    def script(self, *words: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run objects.sh."""
        argv = ["sh", str(templates() / "objects.sh"), *words]
        return subprocess.run(argv, capture_output=True, text=True, check=False, env={**self.environ, **(env or {})})

    def tool(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """Run a compiler as a build would: by its name."""
        found = shutil.which(argv[0], path=self.environ["PATH"])
        assert found
        return subprocess.run([found, *argv[1:]], capture_output=True, text=True, check=False, env=self.environ)


@pytest.fixture
def place() -> Iterator[Place]:
    with tempfile.TemporaryDirectory() as folder:  # a socket's path is short
        made = Place(Path(folder), os.environ["PATH"])
        nvcc = made.folder / "toolkit" / "bin" / "nvcc"
        nvcc.parent.mkdir(parents=True)
        nvcc.write_text(TELL)
        nvcc.chmod(0o755)
        (made.folder / "toolkit" / "include").mkdir()
        yield made


@pytest.fixture
def laid_out(place: Place) -> Place:
    """With a server, and an sccache that tells what it is asked."""
    place.sccache(TELL.replace('"$0" ', ""))
    place.script("start")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(place.environ["SCCACHE_SERVER_UDS"])
    return place


def test_a_compile_goes_through_the_cache_to_the_real_compiler(laid_out: Place) -> None:
    path, real, *arguments = laid_out.tool("g++", "-c", "a b.cpp", "-D", 'S="it\'s"', "").stdout.split("\n")[:-1]
    assert real == f"{laid_out.objects}/compilers/g++"
    assert os.path.realpath(real) == os.path.realpath(shutil.which("g++") or "")
    assert arguments == ["-c", "a b.cpp", "-D", 'S="it\'s"', ""]
    assert path.split(":")[0] == f"{laid_out.objects}/compilers"
    assert not {f"{laid_out.objects}/launch", f"{laid_out.objects}/cuda/bin"} & set(path.split(":")), (
        "nvcc must find a compiler behind it, not the launcher"
    )


def test_what_is_no_compile_does_not(laid_out: Place) -> None:
    assert "Free Software Foundation" in laid_out.tool("g++", "--version").stdout
    assert laid_out.tool("nvcc", "-dlink", "a.o").stdout.startswith(f"{laid_out.objects}/toolkit/bin/nvcc\n")


def test_without_a_server_the_launcher_is_the_compiler(laid_out: Place) -> None:
    Path(laid_out.environ["SCCACHE_SERVER_UDS"]).unlink()
    failed = laid_out.tool("g++", "-c", "absent.cpp")
    assert failed.returncode == 1
    assert "absent.cpp" in failed.stderr


def test_an_option_of_nvcc_keeps_its_value(laid_out: Place) -> None:
    asked = ["-cudart", "shared", "-c", "k.cu", "-Xcompiler", "-fPIC", "--fmad", "false", "-o", "k.o", "-std"]
    told = laid_out.tool("nvcc", *asked).stdout.split("\n")[2:-1]
    assert told == ["-cudart=shared", "-c", "k.cu", "-Xcompiler", "-fPIC", "--fmad=false", "-o", "k.o", "-std"]


@pytest.mark.parametrize(
    "asked",
    [
        "-MD -MF a.d -c k.cu -o k.o",
        "--generate-dependencies-with-compile --dependency-output a.d -c k.cu -o k.o",
        "-c k.cu -MMD -MP -MT k.o -MF a.d -o other.o",
    ],
)
def test_no_list_of_a_kernel_s_headers_is_asked_for(laid_out: Place, tmp_path: Path, asked: str) -> None:
    listed = tmp_path / "a.d"
    told = laid_out.tool("nvcc", *asked.replace("a.d", str(listed)).split()).stdout.split("\n")[2:-1]
    assert told == ["-c", "k.cu", "-o", "other.o" if "other" in asked else "k.o"]
    assert listed.read_text() == "k.o:\n", "what ninja and make look for is there"


@pytest.mark.parametrize(
    "asked", ["-MD -c k.cu -o k.o", "-MD -MF absent/a.d -c k.cu -o k.o", "-MD -MF a$b.d -c k.cu -o k.o"]
)
def test_a_list_that_cannot_be_written_here_is_left_to_nvcc(laid_out: Place, asked: str) -> None:
    assert laid_out.tool("nvcc", *asked.split()).stdout.split("\n")[2:-1] == asked.split()


def promised(laid_out: Place, *asked: str, **told: str) -> list[str]:
    """What a compile in a source tree is asked, where all headers but the tree's own are known to stay."""
    source = laid_out.folder / "source"
    source.mkdir(exist_ok=True)
    place = {"BUILDFARM_PLACE": "here", "BUILDFARM_SOURCE": str(source), "BUILDFARM_PREFIX": "/py"}
    laid_out.environ = {**laid_out.environ, **place, **told}
    argv = [str(laid_out.objects / "launch" / "g++"), "-c", "a.cpp", *asked]
    done = subprocess.run(argv, cwd=source, env=laid_out.environ, capture_output=True, text=True, check=True)
    return done.stdout.split("\n")[4:-1]


def test_the_names_in_the_source_tree_are_in_the_key(laid_out: Place) -> None:
    source = laid_out.folder / "source"
    first = promised(laid_out)
    assert first[-2] == "-idirafter"
    assert Path(first[-1]).is_dir(), "so that no compiler warns of it"
    (source / "build").mkdir()
    for name in ("a.o", "build/a.d", "build/.ninja_log", "build/.tmpX1y2"):
        (source / name).touch()
    assert promised(laid_out) == first, "what compilers make is no header"
    (source / "new.h").touch()
    second = promised(laid_out)
    assert second != first
    (source / "link").symlink_to("one")
    third = promised(laid_out)
    (source / "link").unlink()
    (source / "link").symlink_to("another")
    assert len({*map(tuple, (first, second, third, promised(laid_out)))}) == 4


@pytest.mark.parametrize(
    "asked",
    ["-I/tmp/made", "-isystem /home/me", "-isystem/home/me", "-I ../up", "-include x.h", "@more", "-B/x", "/tmp/b.cpp"],
)
def test_headers_from_elsewhere_are_looked_for_each_time(laid_out: Place, asked: str) -> None:
    assert "-idirafter" not in promised(laid_out, *asked.split())


@pytest.mark.parametrize("name", ["CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH"])
def test_and_those_of_a_variable(laid_out: Place, name: str) -> None:
    assert "-idirafter" not in promised(laid_out, **{name: "/tmp/made"})


@pytest.mark.parametrize("asked", ["-Ihere", "-I/py/include", "-isystem /usr/include", "-iquote inc", "-o a.o -O2"])
def test_headers_of_the_place_and_its_tree_are_known(laid_out: Place, asked: str) -> None:
    assert promised(laid_out, *asked.split())[-2] == "-idirafter"


def test_the_key_of_a_whole_kernel_is_new_each_time(laid_out: Place) -> None:
    _, whole, *asked = laid_out.tool("nvcc", "-c", "k.cu").stdout.split("\n")[:-1]
    assert asked == ["-c", "k.cu"]

    def said(*words: str) -> str:
        return subprocess.run([whole, *words], capture_output=True, text=True, check=True, env=laid_out.environ).stdout

    key = ["-x", "cu", "k.cu", "-E", "-Xcompiler=-P"]
    assert len(said(*key).split()) == 1
    assert said(*key) != said(*key)
    assert said("-E", "k.cu").split("\n")[0] == f"{laid_out.objects}/toolkit/bin/nvcc", "all else nvcc answers"
    assert said("-E", "k.cu").split("\n")[-3:-1] == ["-E", "k.cu"]


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ("-Wsign-compare -DNDEBUG -g -fwrapv -O3 -Wall", "-Wsign-compare -DNDEBUG -g -O3 -Wall"),
        ("-fno-strict-overflow -Wsign-compare -DNDEBUG -g -O3 -Wall", "-Wsign-compare -DNDEBUG -g -O3 -Wall"),
        ("-Wno-unused-result -Wsign-compare -DNDEBUG -g -fwrapv -O3 -Wall", "-Wsign-compare -DNDEBUG -g -O3 -Wall"),
    ],
    ids=["3.11", "3.12", "3.10"],
)
def test_python_s_own_flags_are_the_same_for_all(laid_out: Place, flags: str, told: str) -> None:
    said = laid_out.tool("gcc", *flags.split(), "-c", "a.c").stdout.split("\n")[2:-1]
    assert said == ["-fno-strict-overflow", "-Wno-unused-result", *told.split(), "-c", "a.c"]


@pytest.mark.parametrize("flags", ["-O2", "-fwrapv -fno-wrapv", "-fstrict-overflow -fwrapv", "-fwrapv -Wunused-result"])
def test_somebody_s_own_flags_stay_as_they_are(laid_out: Place, flags: str) -> None:
    assert laid_out.tool("gcc", *flags.split(), "-c", "a.c").stdout.split("\n")[2:-1] == [*flags.split(), "-c", "a.c"]


def test_the_toolkit_is_the_real_one_but_for_nvcc(laid_out: Place) -> None:
    home = Path(laid_out.environ["CUDA_HOME"])
    assert (home / "include").resolve() == (laid_out.folder / "toolkit" / "include").resolve()
    assert not (home / "bin" / "nvcc").is_symlink()


def test_a_recipe_s_own_compiler_is_behind_the_cache_too(place: Place) -> None:
    other = place.folder / "bin" / "gcc-77"
    other.parent.mkdir()
    other.write_text(TELL)
    other.chmod(0o755)
    place.environ |= {"CC": "gcc-77", "PATH": f"{place.environ['PATH']}:{other.parent}"}
    place.script("start")
    assert (place.objects / "compilers" / "gcc-77").resolve() == other.resolve()
    assert (place.objects / "compilers" / "gcc").resolve() != other.resolve()
    assert (place.objects / "launch" / "gcc-77").is_file()


@pytest.fixture
def without_nvcc(place: Place) -> Place:
    shutil.rmtree(place.folder / "toolkit")
    return place


def fake(kind: str) -> str:
    return SCCACHE.format(python=sys.executable, kind=kind)


def test_a_sound_cache_is_tried_once_and_used(without_nvcc: Place) -> None:
    without_nvcc.sccache(fake("sound"))
    for _ in range(2):
        done = without_nvcc.script("wrap", "sh", "-c", 'test -S "$SCCACHE_SERVER_UDS"')
        assert (done.returncode, done.stdout) == (0, "")
        assert not Path(without_nvcc.environ["SCCACHE_SERVER_UDS"]).exists(), "its server is gone afterwards"
    assert (without_nvcc.kept / "started").read_text() == "xx"
    assert (without_nvcc.kept / "compiles").read_text() == "xx", "the check compiles twice, the first time only"


def test_a_cache_that_gives_back_an_old_object_is_not_used(without_nvcc: Place) -> None:
    without_nvcc.sccache(fake("stale"))
    for _ in range(2):
        done = without_nvcc.script("wrap", "sh", "-c", 'test ! -e "$SCCACHE_SERVER_UDS" && exit 7')
        assert done.returncode == 7, "the build goes on without it"
        assert "old object for a changed source" in done.stdout
    assert (without_nvcc.kept / "compiles").read_text() == "xx"
    assert "old object" in (without_nvcc.told / "refused").read_text()


def test_another_release_of_the_compiler_is_tried_anew(without_nvcc: Place) -> None:
    without_nvcc.sccache(fake("sound"))
    without_nvcc.script("wrap", "true")
    other = without_nvcc.folder / "g++"
    other.write_text('#!/bin/sh\n[ "$1" != --version ] || exec echo 99\nexec g++ "$@"\n')
    other.chmod(0o755)
    without_nvcc.script("wrap", "true", env={"BUILDFARM_CXX": str(other)})
    assert (without_nvcc.kept / "compiles").read_text() == "xxxx"


def test_a_server_that_does_not_start_fails_the_cache_and_not_the_build(without_nvcc: Place) -> None:
    without_nvcc.sccache(fake("broken"))
    done = without_nvcc.script("wrap", "sh", "-c", "exit 3")
    assert done.returncode == 3
    assert done.stdout == "note: no object cache: sccache: error: no such bucket\n"


def test_no_sccache_at_all_fails_the_cache_and_not_the_build(without_nvcc: Place) -> None:
    done = without_nvcc.script("wrap", "true")
    assert done.returncode == 0
    assert "not found" in done.stdout


def test_a_build_ended_by_a_signal_is_told_as_one(without_nvcc: Place) -> None:
    without_nvcc.sccache(fake("sound"))
    assert without_nvcc.script("wrap", "sh", "-c", "kill -9 $$").returncode == -9


def test_a_source_that_no_cache_sees_whole_is_told_as_the_reason(place: Place) -> None:
    place.sccache("#!/bin/sh\nexit 0\n")
    reason = "blob.S takes a file in with .incbin, which no cache sees"
    done = place.script("start", env={"SCCACHE_NO_CACHE": "1", "BUILDFARM_OBJECTS_REFUSED": reason})
    assert done.returncode == 0, done.stderr
    told = read_objects(place.told, "/src")
    assert told is not None
    assert told.sentence() == f"object cache not used: {reason}"
