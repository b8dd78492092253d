"""The launchers in front of the compilers, with a substitute for sccache and the real g++, and flags of gcc."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builder.wheels.build_scripts import PACKAGE, script_command
from builder.wheels.build_scripts.job_file import write_job
from builder.wheels.build_scripts.new_environment import fix_header_times
from builder.wheels.sccache.configure import TURNED_OFF, as_set, cache_variables, read_statistics
from builder.wheels.sccache.launchers.server import CacheSettings
from builder.wheels.variables import prefix_map_flags

#: It writes down how often it compiles.
SCCACHE = """#!/bin/sh
"exec" "{python}" "$0" "$@"  # the path of a first line may have no space; to Python this line is a string
import hashlib, os, shutil, socket, subprocess, sys
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
elif kind == "failing":
    sys.exit("fatbinary fatal   : Could not open input file\\nsccache: Compiler killed by signal 1")
else:
    source = next(word for word in asked[1:] if word.endswith((".cpp", ".cu")))
    kept = cache / hashlib.sha256(Path(source).read_bytes()).hexdigest()
    (cache / "compiles").open("a").write("x")
    if not kept.exists():
        status = subprocess.run(asked).returncode
        if status:
            sys.exit(status)
        shutil.copy(asked[asked.index("-o") + 1], kept)
    shutil.copy(kept, asked[asked.index("-o") + 1])
"""

PRINT = '#!/bin/sh\nprintf \'%s\\n\' "$0" "$PATH" "$@"\n'


START = (
    "import sys; from pathlib import Path;"
    "from builder.wheels.build_scripts.job_file import read_job;"
    "from builder.wheels.sccache.launchers.server import CacheSettings, start;"
    "start(read_job(Path(sys.argv[1]), CacheSettings))"
)


class Place:
    """A build's folder with its launchers, and the variables for them."""

    def __init__(self, folder: Path, path: str) -> None:
        self.folder = folder
        self.cache_dir = folder / "cache" / "kept"
        self.objects, self.statistics_dir = folder / "objects", folder / "statistics"
        self.settings = CacheSettings(
            objects=self.objects,
            statistics_dir=self.statistics_dir,
            toolkit=folder / "toolkit",
            site=folder,
            cc=shutil.which("gcc") or "gcc",
            cxx=shutil.which("g++") or "g++",
            cache_dir=self.cache_dir,
            socket=folder / "server",
            sccache=str(folder / "sccache"),
        )
        self.environ = cache_variables(self.settings, path)

    def sccache(self, text: str) -> None:
        """Put a program in sccache's place."""
        program = self.folder / "sccache"
        program.write_text(text)
        program.chmod(0o755)

    def start(self, **changes: Any) -> subprocess.CompletedProcess[str]:
        """Lay out the launchers and start the server, as a container does before the build."""
        argv = [sys.executable, "-c", START, str(self._job(changes))]
        return subprocess.run(argv, capture_output=True, text=True, check=False, env=self.environ)

    def run(self, *command: str, **changes: Any) -> subprocess.CompletedProcess[str]:
        """Run a command with the compiler cache, as the local executor does; `changes` are those of the settings."""
        argv = [*script_command(sys.executable, PACKAGE.parent, self._job(changes), "with-compiler-cache"), *command]
        return subprocess.run(argv, capture_output=True, text=True, check=False, env=self.environ)

    def _job(self, changes: Mapping[str, Any]) -> Path:
        file = self.folder / "job.json"
        write_job(file, replace(as_set(self.settings, self.environ), **changes))
        return file

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
        nvcc.write_text(PRINT)
        nvcc.chmod(0o755)
        (made.folder / "toolkit" / "include").mkdir()
        yield made


@pytest.fixture
def laid_out(place: Place) -> Place:
    """With a socket, and an sccache that prints its arguments."""
    place.sccache(PRINT.replace('"$0" ', ""))
    place.start()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(place.environ["SCCACHE_SERVER_UDS"])
    return place


def test_a_compile_calls_the_real_compiler_through_sccache(laid_out: Place) -> None:
    path, real, *arguments = laid_out.tool("g++", "-c", "a b.cpp", "-D", 'S="it\'s"', "").stdout.split("\n")[:-1]
    assert real == f"{laid_out.objects}/compilers/g++"
    assert os.path.realpath(real) == os.path.realpath(shutil.which("g++") or "")
    assert arguments == ["-c", "a b.cpp", "-D", 'S="it\'s"', ""]
    assert path.split(":")[0] == f"{laid_out.objects}/compilers"
    assert not {f"{laid_out.objects}/launch", f"{laid_out.objects}/cuda/bin"} & set(path.split(":")), (
        "nvcc must find a compiler behind it, not the launcher"
    )


def test_calls_that_do_not_compile_skip_sccache(laid_out: Place) -> None:
    assert "Free Software Foundation" in laid_out.tool("g++", "--version").stdout
    assert laid_out.tool("nvcc", "-dlink", "a.o").stdout.startswith(f"{laid_out.objects}/toolkit/bin/nvcc\n")


def test_without_a_server_the_launcher_is_the_compiler(laid_out: Place) -> None:
    Path(laid_out.environ["SCCACHE_SERVER_UDS"]).unlink()
    failed = laid_out.tool("g++", "-c", "absent.cpp")
    assert failed.returncode == 1
    assert "absent.cpp" in failed.stderr


@pytest.mark.parametrize("asked", [["g++", "-c", "absent.cpp"], ["nvcc", "-c", "k.cu"]])
def test_a_compiler_that_sccache_starts_does_not_wait_for_sccache(laid_out: Place, asked: list[str]) -> None:
    """`sccache nvcc` of Meson: the server starts the launcher, which would wait for that server."""
    (laid_out.folder / "sccache").write_text("#!/bin/sh\nexit 7\n")
    caller = laid_out.folder / "outer" / "sccache"
    caller.parent.mkdir()
    caller.write_text('#!/bin/sh\n"$@"\nexit $?\n')
    caller.chmod(0o755)
    assert laid_out.tool(*asked).returncode == 7, "without sccache around it, sccache is called"
    done = subprocess.run([caller, *asked], capture_output=True, text=True, check=False, env=laid_out.environ)
    assert done.returncode == (1 if asked[0] == "g++" else 0)
    assert ("absent.cpp" in done.stderr) or done.stdout.startswith(f"{laid_out.objects}/toolkit/bin/nvcc\n")


@pytest.mark.parametrize("name", ["sccache", "ccache"])
@pytest.mark.parametrize("off", [False, True])
def test_a_source_finds_no_compiler_cache_of_its_own(without_nvcc: Place, name: str, *, off: bool) -> None:
    """Meson and many setup.py put a compiler cache of PATH before each compiler."""
    without_nvcc.sccache(fake("sound"))
    found = without_nvcc.folder / "bin" / name
    found.parent.mkdir()
    found.write_text("#!/bin/sh\nexit 8\n")
    found.chmod(0o755)
    without_nvcc.environ |= {"PATH": f"{without_nvcc.environ['PATH']}:{found.parent}"}
    calls = f"{name} --version || echo none; {name} --zero-stats && {name} sloppiness=x g++ -c absent.cpp || exit 3"
    done = without_nvcc.run("sh", "-c", calls, **({"disabled": TURNED_OFF} if off else {}))
    assert (done.returncode, done.stdout) == (3, "none\n")
    assert "absent.cpp" in done.stderr, "it calls the compiler, whose launcher calls sccache"


@pytest.mark.parametrize("name", ["sccache", "ccache"])
def test_a_compiler_cache_that_is_not_on_path_stays_away(without_nvcc: Place, name: str, tmp_path: Path) -> None:
    for tool in ("sh", "g++", "gcc", "as", "ld", "cat", "uname"):
        (tmp_path / tool).symlink_to(shutil.which(tool) or tool)
    launch = without_nvcc.environ["PATH"].partition(":")[0]
    without_nvcc.environ |= {"PATH": f"{launch}:{tmp_path}"}
    without_nvcc.sccache(fake("sound"))
    assert without_nvcc.run("sh", "-c", f"command -v {name}").stdout == ""


def test_the_server_is_stopped_by_the_real_sccache(without_nvcc: Place) -> None:
    """In a container, the settings name the program without its folder."""
    without_nvcc.sccache(fake("sound"))
    launch, _, rest = without_nvcc.environ["PATH"].partition(":")
    without_nvcc.environ |= {"PATH": f"{launch}:{without_nvcc.folder}:{rest}"}
    done = without_nvcc.run("sh", "-c", 'test -S "$SCCACHE_SERVER_UDS"', sccache="sccache")
    assert (done.returncode, done.stdout) == (0, "")
    assert (without_nvcc.statistics_dir / "stats.json").read_text() == "{}\n"


def nvcc_arguments(laid_out: Place, *asked: str, **variables: str) -> list[str]:
    """The arguments that a call of nvcc reaches sccache or nvcc with."""
    laid_out.environ = {**laid_out.environ, **variables}
    return laid_out.tool("nvcc", *asked).stdout.split("\n")[2:-1]


@pytest.mark.parametrize("threads", ["-t 4", "-t=4", "-t4", "--threads 4", "--threads=4"])
def test_nvcc_starts_one_compiler_at_a_time(laid_out: Place, threads: str, tmp_path: Path) -> None:
    rest = ["-c", "k.cu", "-Xcompiler", "-t", "-arch=sm_80"]
    assert nvcc_arguments(laid_out, *threads.split(), *rest) == rest
    options = tmp_path / "options"
    options.write_text(f'-DX="a b"\n{threads} -O3\n')
    _, changed = nvcc_arguments(laid_out, "-optf", str(options))
    assert Path(changed).read_text().split() == ['-DX="a', 'b"', "-O3"]
    assert nvcc_arguments(laid_out, f"--options-file={options}") == [f"--options-file={changed}"]
    plain = tmp_path / "plain"
    plain.write_text("-O3 -DT=-t4")
    assert nvcc_arguments(laid_out, "-optf", str(plain)) == ["-optf", str(plain)]


OLDEST = "x86-64" if os.uname().machine == "x86_64" else "armv8-a"


@pytest.mark.parametrize(
    ("asked", "reached"),
    [
        (["-march=native", "-O3"], [f"-march={OLDEST}", "-O3"]),
        (["-mtune=native", "-mcpu=native"], ["-mtune=generic", "-mtune=generic"]),
        (["-DA=-march=native-", "-march=x86-64-v3", ""], ["-DA=-march=native-", "-march=x86-64-v3", ""]),
    ],
)
def test_no_compile_is_for_the_cpu_of_this_machine(laid_out: Place, asked: list[str], reached: list[str]) -> None:
    """sphericart-torch 2.0.4 and rotary-emb 0.5: a wheel that ends with SIGILL on an older CPU."""
    assert laid_out.tool("g++", *asked, "-c", "x.cpp").stdout.split("\n")[2:-1] == [*reached, "-c", "x.cpp"]
    for option in ("-Xcompiler", "--compiler-options"):
        assert nvcc_arguments(laid_out, option, "-O3,-march=native", f"{option}=-march=native,-g", "-c", "k.cu") == [
            *(option, f"-O3,-march={OLDEST}"),
            *(f"{option}=-march={OLDEST},-g", "-c", "k.cu"),
        ]


PLAN = ["-gencode=arch=compute_90,code=sm_90", "-gencode=arch=compute_90,code=compute_90"]
#: The variables of a build, and those of one whose recipe has `override_architectures`.
GIVEN = {"BUILDFARM_NVCC_ARCHITECTURES": " ".join(PLAN)}
REPLACED = {**GIVEN, "BUILDFARM_NVCC_REPLACE": "1"}


@pytest.mark.parametrize("cached", [True, False], ids=["with sccache", "without sccache"])
@pytest.mark.parametrize(
    ("asked", "kept"),
    [
        (
            "-gencode arch=compute_80,code=sm_80 -gencode=arch=compute_86,code=[sm_86,compute_86] -O3 -c k.cu",
            "-O3 -c k.cu",
        ),
        ("--generate-code arch=compute_80,code=sm_80 --generate-code=arch=compute_70,code=sm_70 -c k.cu", "-c k.cu"),
        ("-arch=compute_80 -code=sm_80,compute_80 -c k.cu", "-c k.cu"),
        ("-arch sm_80 -c k.cu -Xptxas -arch=sm_80", "-c k.cu -Xptxas -arch=sm_80"),
        ("--gpu-architecture native --gpu-code sm_86 -c k.cu", "-c k.cu"),
        ("-arch=all-major k.cu -o k", "k.cu -o k"),
        ("-dlink -arch=sm_80 a.o", "-dlink a.o"),
        ("-c k.cu", "-c k.cu"),
    ],
)
def test_the_plans_architectures_replace_those_of_the_source(
    laid_out: Place, asked: str, kept: str, cached: bool
) -> None:
    if not cached:
        Path(laid_out.environ["SCCACHE_SERVER_UDS"]).unlink()
    assert nvcc_arguments(laid_out, *asked.split(), **REPLACED) == [*kept.split(), *PLAN]


#: Calls whose architectures stay. nvcc alone would compile for sm_75 those that get the plan's; torch adds none if an
#: option for nvcc contains `arch`.
CALLS = [
    *(
        (asked, GIVEN, PLAN)
        for asked in ("-c k.cu -o k.o", "-dlink a.o -o d.o", "-shared k.cu -o k.so", "-fatbin k.cu")
    ),
    ("-dc -Xcompiler -march=x86-64-v3 -I/x/research k.cu", GIVEN, PLAN),
    ("-Xcompiler -arch=sm_80 -o -arch -c k.cu", GIVEN, PLAN),
    # A call that makes no code for the wheel.
    *((asked, REPLACED, []) for asked in ("--version", "-ptx k.cu -arch=sm_80", "-cubin -arch sm_80 k.cu")),
    *((asked, each, []) for asked in ("-shared a.o -o a.so", "--version") for each in (REPLACED, GIVEN)),
    *((asked, GIVEN, []) for asked in ("-c k.cu -arch sm_80", "-c k.cu -gencode=arch=compute_80,code=sm_80")),
    *((asked, GIVEN, []) for asked in ("-dlink --gpu-architecture=sm_80 a.o", "-cubin k.cu", "-E k.cu", "-M k.cu")),
    ("-c k.cu -optf {options}", GIVEN, []),
    ("-c k.cu", {**GIVEN, "NVCC_APPEND_FLAGS": "-arch=sm_80"}, []),
    # sccache takes the value of an option that it does not know for a second source.
    ("-cudart=shared -c k.cu -Xcompiler -fPIC --fmad=false -o k.o -std", {}, []),
]


@pytest.mark.parametrize(("asked", "variables", "added"), CALLS)
def test_a_call_keeps_its_architectures_or_gets_those_of_the_plan(
    laid_out: Place, asked: str, variables: dict[str, str], added: list[str], tmp_path: Path
) -> None:
    options = tmp_path / "options"
    options.write_text("-O3\n-gencode arch=compute_80,code=sm_80")
    words = asked.format(options=options).split()
    split = [part for word in words for part in (word.split("=") if word.startswith(("-cudart", "--fmad")) else [word])]
    assert nvcc_arguments(laid_out, *split, **variables) == [*words, *added]


def test_architectures_in_files_and_variables_are_replaced_too(laid_out: Place, tmp_path: Path) -> None:
    nvcc = laid_out.folder / "toolkit" / "bin" / "nvcc"
    nvcc.write_text('#!/bin/sh\nprintf "%s\\n" "$NVCC_PREPEND_FLAGS" "$NVCC_APPEND_FLAGS" "$@"\n')
    Path(laid_out.environ["SCCACHE_SERVER_UDS"]).unlink()
    options = tmp_path / "options"
    options.write_text('-I"/a b" -gencode "arch=compute_80, code=sm_80"\n-arch\nsm_80 -O3')
    laid_out.environ |= {
        **REPLACED,
        "NVCC_PREPEND_FLAGS": "-objtemp -Xcompiler -ffile-prefix-map=/a-t=.",
        "NVCC_APPEND_FLAGS": "-gencode arch=compute_80,code=sm_80 -lineinfo --threads 8",
    }
    before, after, *made = laid_out.tool("nvcc", "-c", "k.cu", "-optf", str(options)).stdout.split("\n")[:-1]
    assert before.split() == ["-objtemp", "-Xcompiler", "-ffile-prefix-map=/a-t=."]
    assert after.split() == ["-lineinfo"]
    assert made[:3] == ["-c", "k.cu", "-optf"]
    assert made[4:6] == PLAN
    assert Path(made[3]).read_text().split() == ['-I"/a', 'b"', "-O3"]


@pytest.mark.parametrize(
    ("asked", "cached"),
    [
        ("-gencode=arch=compute_80,code=sm_80 -gencode=arch=compute_90,code=[sm_90,compute_90]", True),
        ("-gencode arch=compute_90a,code=sm_90a", True),
        ("-gencode=arch=compute_80,code=sm_80 -gencode=arch=compute_80,code=sm_86", False),
        ("-gencode=arch=compute_80,code=[sm_80,sm_86]", False),
        ("-arch=compute_80 -code=sm_80,sm_86", False),
    ],
)
def test_gpus_that_share_a_virtual_architecture_are_compiled_without_sccache(
    laid_out: Place, asked: str, cached: bool
) -> None:
    called = laid_out.tool("nvcc", "-c", "k.cu", *asked.split()).stdout.split("\n")
    assert (called[1] == f"{laid_out.objects}/whole/nvcc") is cached
    assert (called[0] == f"{laid_out.objects}/toolkit/bin/nvcc") is not cached


@pytest.mark.parametrize(
    "asked",
    [
        "-MD -MF a.d -c k.cu -o k.o",
        "--generate-dependencies-with-compile --dependency-output a.d -c k.cu -o k.o",
        "-c k.cu -MMD -MP -MT k.o -MF a.d -o other.o",
    ],
)
def test_nvcc_is_not_asked_for_the_list_of_a_kernel_s_headers(laid_out: Place, tmp_path: Path, asked: str) -> None:
    listed = tmp_path / "a.d"
    arguments = laid_out.tool("nvcc", *asked.replace("a.d", str(listed)).split()).stdout.split("\n")[2:-1]
    assert arguments == ["-c", "k.cu", "-o", "other.o" if "other" in asked else "k.o"]
    assert listed.read_text() == "k.o:\n", "ninja and make find the file they look for"


@pytest.mark.parametrize(
    "asked", ["-MD -c k.cu -o k.o", "-MD -MF absent/a.d -c k.cu -o k.o", "-MD -MF a$b.d -c k.cu -o k.o"]
)
def test_nvcc_writes_a_list_that_the_launcher_cannot_write(laid_out: Place, asked: str) -> None:
    assert laid_out.tool("nvcc", *asked.split()).stdout.split("\n")[2:-1] == asked.split()


def in_source_tree(laid_out: Place, *asked: str, **variables: str) -> list[str]:
    """The arguments that a compile in a source tree reaches sccache with; the digest covers all headers outside."""
    source = laid_out.folder / "source"
    source.mkdir(exist_ok=True)
    place = {"BUILDFARM_HEADERS_DIGEST": "here", "BUILDFARM_SOURCE": str(source), "BUILDFARM_PREFIX": "/py"}
    laid_out.environ = {**laid_out.environ, **place, **variables}
    argv = [str(laid_out.objects / "launch" / "g++"), "-c", "a.cpp", *asked]
    done = subprocess.run(argv, cwd=source, env=laid_out.environ, capture_output=True, text=True, check=True)
    return done.stdout.split("\n")[4:-1]


def test_the_file_names_in_the_source_tree_are_in_the_key(laid_out: Place) -> None:
    source = laid_out.folder / "source"
    first = in_source_tree(laid_out)
    assert first[-2] == "-idirafter"
    assert Path(first[-1]).is_dir(), "an absent folder would make compilers warn"
    (source / "build").mkdir()
    for name in ("a.o", "build/a.d", "build/.ninja_log", "build/.tmpX1y2"):
        (source / name).touch()
    assert in_source_tree(laid_out) == first, "output of compilers is not a header"
    (source / "new.h").touch()
    second = in_source_tree(laid_out)
    assert second != first
    (source / "link").symlink_to("one")
    third = in_source_tree(laid_out)
    (source / "link").unlink()
    (source / "link").symlink_to("two")
    assert len({*map(tuple, (first, second, third, in_source_tree(laid_out)))}) == 4


@pytest.mark.parametrize(
    ("asked", "variables", "direct"),
    [
        *((asked, {}, False) for asked in ("-I/tmp/made", "-isystem /home/me", "-isystem/home/me", "-I ../up")),
        *((asked, {}, False) for asked in ("-include x.h", "@more", "-B/x", "/tmp/b.cpp")),
        *(("", {name: "/tmp/made"}, False) for name in ("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH")),
        *((asked, {}, True) for asked in ("-Ihere", "-I/py/include", "-isystem /usr/include", "-iquote inc")),
        ("-o a.o -O2", {}, True),
    ],
)
def test_direct_mode_needs_headers_that_the_digest_or_the_tree_covers(
    laid_out: Place, asked: str, variables: dict[str, str], *, direct: bool
) -> None:
    arguments = in_source_tree(laid_out, *asked.split(), **variables)
    assert ("-idirafter" in arguments) is direct
    assert not direct or arguments[-2] == "-idirafter"


def test_the_key_of_a_complete_kernel_is_new_each_time(laid_out: Place) -> None:
    _, server_nvcc, *asked = laid_out.tool("nvcc", "-c", "k.cu").stdout.split("\n")[:-1]
    assert asked == ["-c", "k.cu"]

    def output(*words: str) -> str:
        return subprocess.run(
            [server_nvcc, *words], capture_output=True, text=True, check=True, env=laid_out.environ
        ).stdout

    key = ["-x", "cu", "k.cu", "-E", "-Xcompiler=-P"]
    assert len(output(*key).split()) == 1
    assert output(*key) != output(*key)
    assert output("-E", "k.cu").split("\n")[0] == f"{laid_out.objects}/toolkit/bin/nvcc", "nvcc gets all other calls"
    assert output("-E", "k.cu").split("\n")[-3:-1] == ["-E", "k.cu"]


WARNS = "-Wsign-compare -DNDEBUG -g -O3 -Wall"


@pytest.mark.parametrize(
    ("flags", "reached"),
    [
        # Python's own flags: of 3.11, 3.12 and 3.10.
        ("-Wsign-compare -DNDEBUG -g -fwrapv -O3 -Wall", f"-fno-strict-overflow -Wno-unused-result {WARNS}"),
        (f"-fno-strict-overflow {WARNS}", f"-fno-strict-overflow -Wno-unused-result {WARNS}"),
        (f"-Wno-unused-result -fwrapv {WARNS}", f"-fno-strict-overflow -Wno-unused-result {WARNS}"),
        *((flags, flags) for flags in ("-O2", "-fwrapv -fno-wrapv", "-fstrict-overflow -fwrapv")),
        ("-fwrapv -Wunused-result", "-fwrapv -Wunused-result"),
    ],
)
def test_python_s_own_flags_are_the_same_for_all(laid_out: Place, flags: str, reached: str) -> None:
    output = laid_out.tool("gcc", *flags.split(), "-c", "a.c").stdout.split("\n")[2:-1]
    assert output == [*reached.split(), "-c", "a.c"]


def test_the_toolkit_is_the_real_one_except_for_nvcc(laid_out: Place) -> None:
    home = Path(laid_out.environ["CUDA_HOME"])
    assert (home / "include").resolve() == (laid_out.folder / "toolkit" / "include").resolve()
    assert not (home / "bin" / "nvcc").is_symlink()


def test_a_recipe_s_own_compiler_gets_a_launcher_too(place: Place) -> None:
    other = place.folder / "bin" / "gcc-77"
    other.parent.mkdir()
    other.write_text(PRINT)
    other.chmod(0o755)
    place.environ |= {"CC": "gcc-77", "PATH": f"{place.environ['PATH']}:{other.parent}"}
    place.start()
    assert (place.objects / "compilers" / "gcc-77").resolve() == other.resolve()
    assert (place.objects / "compilers" / "gcc").resolve() != other.resolve()
    assert (place.objects / "launch" / "gcc-77").is_file()


@pytest.fixture
def without_nvcc(place: Place) -> Place:
    shutil.rmtree(place.folder / "toolkit")
    return place


def fake(kind: str) -> str:
    return SCCACHE.format(python=sys.executable, kind=kind)


def test_a_sound_cache_is_used_and_tested_once_for_each_release_of_the_compiler(without_nvcc: Place) -> None:
    without_nvcc.sccache(fake("sound"))
    for _ in range(2):
        done = without_nvcc.run("sh", "-c", 'test -S "$SCCACHE_SERVER_UDS"')
        assert (done.returncode, done.stdout) == (0, "")
        assert not Path(without_nvcc.environ["SCCACHE_SERVER_UDS"]).exists(), "the server is stopped afterwards"
    assert (without_nvcc.cache_dir / "started").read_text() == "xx"
    assert (without_nvcc.cache_dir / "compiles").read_text() == "x", "the self-test compiles in the first run"
    other = without_nvcc.folder / "g++"
    other.write_text('#!/bin/sh\n[ "$1" != --version ] || exec echo 99\nexec g++ "$@"\n')
    other.chmod(0o755)
    without_nvcc.run("true", cxx=str(other))
    assert (without_nvcc.cache_dir / "compiles").read_text() == "xx"


def test_a_cache_that_cannot_compile_is_not_used_until_one_can(place: Place) -> None:
    """sccache 0.16 with nvcc 13.4 and 13.5: "fatbinary fatal: Could not open input file", status 254, for each file."""
    nvcc = place.folder / "toolkit" / "bin" / "nvcc"
    nvcc.write_text(
        '#!/bin/sh\n[ "$1" != --version ] || exec echo "Cuda compilation tools, release 13.5, V13.5.37"\ncp "$2" "$4"\n'
    )
    place.sccache(fake("failing"))
    for _ in range(2):
        done = place.run("sh", "-c", 'test ! -e "$SCCACHE_SERVER_UDS"')
        assert (done.returncode, done.stdout) == (
            0,
            "note: the compiler cache is not used: sccache 0.16.0 with nvcc 13.5 failed its self-test:"
            " fatbinary fatal   : Could not open input file\n",
        )
    place.sccache(fake("sound"))
    done = place.run("sh", "-c", 'test -S "$SCCACHE_SERVER_UDS"')
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("program", ["broken", ""], ids=["the server does not start", "no sccache"])
def test_a_build_goes_on_without_a_server(without_nvcc: Place, program: str) -> None:
    if program:
        without_nvcc.sccache(fake(program))
    done = without_nvcc.run("sh", "-c", "exit 3")
    assert done.returncode == 3
    assert done.stdout.startswith("note: the compiler cache is not used: ")
    assert ("sccache: error: no such bucket" if program else "No such file") in done.stdout


def test_a_build_that_a_signal_ends_ends_by_the_same_signal(without_nvcc: Place) -> None:
    without_nvcc.sccache(fake("sound"))
    assert without_nvcc.run("sh", "-c", "kill -9 $$").returncode == -9


def test_an_unsafe_source_is_the_reason_in_the_statistics(place: Place) -> None:
    place.sccache("#!/bin/sh\nexit 0\n")
    reason = "blob.S embeds a file by .incbin"
    done = place.start(reads=False, refused=reason)
    assert done.returncode == 0, done.stderr
    statistics = read_statistics(place.statistics_dir)
    assert statistics is not None
    assert statistics.sentence() == f"compiler cache not used: {reason}"


def test_without_the_compiler_cache_no_server_starts(without_nvcc: Place) -> None:
    without_nvcc.sccache(fake("sound"))
    command = 'test ! -e "$SCCACHE_SERVER_UDS" && command -v g++'
    done = without_nvcc.run("sh", "-c", command, disabled=TURNED_OFF)
    assert (done.returncode, done.stdout) == (0, f"{without_nvcc.objects}/launch/g++\n"), "the launchers decide bytes"
    assert not without_nvcc.cache_dir.exists()
    statistics = read_statistics(without_nvcc.statistics_dir)
    assert statistics is not None
    assert statistics.sentence() == "compiler cache not used: it is turned off"


@pytest.mark.parametrize("hashed", [True, False], ids=["source", "store"])
def test_a_compiler_calls_the_folders_as_it_is_told(tmp_path: Path, *, hashed: bool) -> None:
    texts = []
    for name in ("one", "another place".replace(" ", "-")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "a.c").write_text("const char *where(void) { return __FILE__; }\n")
        named = {folder: "."}
        maps = prefix_map_flags(named if hashed else {}, stores={} if hashed else named)
        flags = maps["CPPFLAGS"].split()
        subprocess.run(["gcc", "-c", "-g", *flags, folder / "a.c", "-o", folder / "a.o"], check=True, cwd=folder)
        texts.append((folder / "a.o").read_bytes())
    assert texts[0] == texts[1]
    assert os.fsencode(tmp_path) not in texts[0]


def test_a_header_does_not_hide_an_equal_one(tmp_path: Path) -> None:
    """gcc takes two headers for one file if their bytes and their times are equal."""
    for name in ("first", "second"):
        (tmp_path / "torch" / "include" / name).mkdir(parents=True)
        header = tmp_path / "torch" / "include" / name / "all.h"
        header.write_text('#pragma once\n#include "value.h"\n')
        os.utime(header, (1, 1))
        header.with_name("value.h").write_text(f"int {name};\n")
    script = tmp_path / "torch" / "include" / "__init__.py"
    script.touch()
    os.utime(script, (1, 1))
    fix_header_times(tmp_path)
    source = tmp_path / "source.c"
    source.write_text('#include "torch/include/first/all.h"\n#include "torch/include/second/all.h"\n')
    text = subprocess.run(["gcc", "-E", "-P", source], capture_output=True, text=True, check=True).stdout
    assert text.split() == ["int", "first;", "int", "second;"]
    assert script.stat().st_mtime == 1, "its bytecode holds its time"
    before = header.stat().st_mtime
    fix_header_times(tmp_path)
    assert header.stat().st_mtime == before
