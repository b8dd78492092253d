"""The files of a build that are compiled, read from real output of ninja, uv and buildx."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from builder.progress.display import FileCount

#: torch runs `ninja -v`.
NINJA = [
    "running build_ext",
    "building 'demo._C' extension",
    "creating /var/tmp/buildfarm.build.demo/src/build/temp.linux-x86_64-cpython-312/csrc",
    "[1/3] g++ -MMD -MF /s/build/csrc/ops.o.d -fPIC -I/s/csrc -c -c /s/csrc/ops.cpp -o /s/build/csrc/ops.o -DTORCH",
    "/s/csrc/ops.cpp:3: warning: unused variable",
    "[2/3] /o/cuda/bin/nvcc --generate-dependencies-with-compile -I/s -c -c /s/csrc/fwd.cu -o /s/build/fwd.o -O3",
]
CMAKE_NINJA = ["[1/4] Building CXX object CMakeFiles/x.dir/src/b.cpp.o", "[4/4] Linking CXX shared library libx.so"]
#: uv without a terminal.
DOWNLOADS = [
    "Resolved 34 packages in 2.1s",
    "Downloading torch (530.0MiB)",
    "Building demo @ file:///demo",
    "Downloading triton (153600.0KiB)",
    " Downloaded triton",
    " Downloaded torch",
    "Prepared 34 packages in 31.20s",
    "Installed 34 packages in 838ms",
]


def text_of(lines: Sequence[str], *, calls: Sequence[str] = ()) -> str:
    count = FileCount()
    for line in lines:
        count.read(line)
    for call in calls:
        count.read_call(call)
    return count.text()


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        ([], ""),
        (NINJA[:3], ""),
        (NINJA[:4], "1 of 3: ops.cpp"),
        (NINJA, "2 of 3: fwd.cu"),
        (CMAKE_NINJA[:1], "1 of 4: b.cpp"),
        (CMAKE_NINJA, "4 of 4: b.cpp"),
        (DOWNLOADS[:2], "download 0 bytes of 530.0 MiB: torch"),
        (DOWNLOADS[:4], "download 0 bytes of 680.0 MiB: torch and 1 more"),
        (DOWNLOADS[:5], "download 150.0 MiB of 680.0 MiB: torch"),
        (DOWNLOADS, ""),
        (["gate: values of ns::f; 34 tasks to start"], "(values of ns::f; 34 tasks to start)"),
        (["gate: 12 of 52 ops", "gate: 3 of 9 ops, again"], "(3 of 9 ops, again)"),
        (["#9 [build 2/5] RUN dnf install --assumeyes which", "#9 1.204 Complete!"], "step 2 of 5 of the image"),
    ],
)
def test_the_output_of_a_tool(lines: list[str], text: str) -> None:
    assert text_of(lines) == text


def test_the_launcher_names_the_files_that_are_being_compiled() -> None:
    assert text_of([], calls=["csrc/ops.cpp"]) == "file 1: ops.cpp"
    assert text_of(NINJA[:4], calls=["/s/csrc/ops.cpp", "/s/csrc/fwd.cu"]) == "1 of 3: fwd.cu"
    calls = ["/s/csrc/ops.cpp", "a.cu", "b.cu", "c.cu", "d.cu"]
    assert text_of(NINJA[:4], calls=calls) == "1 of 3: a.cu, b.cu and 2 more"


def test_compiler_trials_are_no_files_of_the_build() -> None:
    trials = ["/b/CMakeFiles/4.1/CompilerIdCUDA/CMakeCUDACompilerId.cu", "/o/self-test/buildfarm-check.cu"]
    assert text_of([], calls=trials) == ""


def test_setuptools_starts_ninja_once_for_each_extension() -> None:
    first = ["[1/2] g++ -c a.cpp -o a.o", "[2/2] g++ -c b.cpp -o b.o"]
    second = ["[1/3] g++ -c c.cpp -o c.o"]
    assert text_of([*first, *second]) == "3 of 5: c.cpp"
