"""facts.yaml: what a torch release and a CUDA toolkit on a loopback index say of themselves, and indexes that lie."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from typer.testing import CliRunner

from builder.cli.app import app
from builder.errors import Code
from builder.matrix.axes import Cuda, Torch
from builder.matrix.compat import Compat, use_facts_of
from builder.matrix.compat_table import read_rows
from builder.wheels.upstream import toolkit_facts, torch_facts
from tests.refused import refused
from tests.unit.loopback import PackageIndex, pure_wheel

MATRIX = "torch: [2.99]\ncuda: [13.9]\npython: [3.12]\nextensions: [ops]\n"
RECIPE = "name: ops\nversion: 0.1.0\nsource: {path: .}\nimports: [ops]\nabi: stable\n"
EXTENSION = """\
MINIMUM_GCC_VERSION = (5, 0, 0)
CUDA_GCC_VERSIONS: VersionMap = {
    '11.8': (MINIMUM_GCC_VERSION, (12, 0)),
    '13.0': ((6, 0, 0), (16, 0)),
    '13.9': ((6, 0, 0), (17, 1)),
}
def _get_cuda_arch_flags(cflags=None):
    supported_arches = ['7.5', '9.0', '9.0a', '13.0']
def build(flags):
    return [*flags, '-std=c++20']
"""
LIBRARY = b"\x7fELF\0std::string ipc_hsm_75 sm_90 sm_130 compute_130\0sm_\0arch sm_80\0"
TORCH: Mapping[str, str | bytes] = {
    "torch/version.py": "__version__ = '2.99.0+cu139'\ncuda: Optional[str] = '13.9'\n",
    "torch/utils/cpp_extension.py": EXTENSION,
    "torch/include/ATen/ATen.h": "#if __cplusplus < 202302L\n#error C++23 is required\n#endif\n",
    "torch/lib/libtorch_python.so": LIBRARY,
}
PTXAS = """\
#!/bin/sh
case "$*" in
*--help*) echo "Allowed values: 'compute_75','sm_130','sm_130a','sm_75'" ;;
*) echo "fatal : Unsupported .version 99.9; current version is '9.9'" >&2; exit 1 ;;
esac
"""
CPU_TORCH = {**TORCH, "torch/version.py": "__version__ = '2.99.0+cpu'\ncuda: Optional[str] = None\n"}
TAGS = ("cp312-cp312-manylinux_2_28_x86_64", "cp313-cp313-manylinux_2_28_x86_64", "cp313-cp313t-manylinux_2_28_x86_64")


def add_torch(index: PackageIndex, files: Mapping[str, str | bytes], *tags: str) -> None:
    for tag in tags or TAGS:
        pure_wheel(index.root / "default", "torch", "2.99.0", files, tag=tag, requires_python=">=3.12")


def add_toolkit(
    index: PackageIndex, ptxas: str = PTXAS, limit: str = "#if __GNUC__ > 17\n", version: str = "13.9.7"
) -> None:
    folder, tag = index.root / "default", "py3-none-manylinux_2_17_x86_64"
    pure_wheel(folder, "nvidia_cuda_nvcc", version, {"nvidia/cu13/bin/ptxas": ptxas}, tag=tag)
    pure_wheel(folder, "nvidia_cuda_crt", version, {"nvidia/cu13/include/crt/host_config.h": limit}, tag=tag)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    (folder / "ops").mkdir(parents=True)
    (folder / "matrix.yaml").write_text(MATRIX)
    (folder / "ops/extension.yaml").write_text(RECIPE)
    (folder / "ops/setup.py").write_text("")
    monkeypatch.chdir(folder)
    monkeypatch.setattr("builder.matrix.compat._facts", [folder / "facts.yaml"])
    use_facts_of(folder)
    return folder


def test_a_new_torch_and_its_toolkit_are_planned(index: PackageIndex, project: Path) -> None:
    add_torch(index, TORCH)
    add_torch(index, {**TORCH, "torch/lib/libtorch_python.so": b"sm_90\0"}, "cp313-cp313-manylinux_2_28_aarch64")
    add_toolkit(index)
    said = CliRunner().invoke(app, ["plan"])
    assert isinstance(said.exception, Exception)
    assert "`buildfarm facts` reads a newer one" in str(said.exception)
    said = CliRunner().invoke(app, ["facts"])
    assert said.exit_code == 0, said
    assert "wrote facts.yaml; commit it with matrix.yaml" in said.stderr
    rows = read_rows(project / "facts.yaml")
    sources = rows["torch"]["2.99.0"].pop("sources")
    assert rows["torch"]["2.99.0"] == {
        "python": ["3.12", "3.13", "3.13t"],
        "variants": {"cu139": {"x86_64": ["7.5", "9.0", "13.0+PTX"], "aarch64": ["9.0"]}},
        "default": "cu139",
        "cxx_standard": "23",
        "gcc_max": {"13.0": "15", "13.9": "17"},
        "arch_list": ["7.5", "9.0", "9.0a", "13.0"],
        "companions": {},
    }
    assert sources["torch-2.99.0-cp313-cp313-manylinux_2_28_x86_64.whl"]["read"]["default"] == "torch/version.py"
    assert rows["toolkits"]["13.9"]["archs"] == ["7.5", "13.0", "13.0a"]
    assert (rows["toolkits"]["13.9"]["ptx"], rows["toolkits"]["13.9"]["gcc_max"]) == ("9.9", "17")
    planned = json.loads(CliRunner().invoke(app, ["plan", "--json"]).stdout)
    assert [build["serves"] for build in planned["builds"]] == [["torch2.99.0-cu139-cp312"]]
    before = (project / "facts.yaml").read_bytes()
    assert "nothing to read" in CliRunner().invoke(app, ["facts"]).stderr
    assert "each fact is as on the package index" in CliRunner().invoke(app, ["facts", "--check"]).stderr
    assert (project / "facts.yaml").read_bytes() == before
    compat = Compat.load()
    assert compat.gcc_range(Torch.parse("2.99.0"), Cuda(13, 9)) == (10, 17)
    # The row of a torch names its CUDA, and has no facts of the toolkit.
    (project / "facts.yaml").write_bytes(before.partition(b"toolkits:")[0] + b"toolkits: {}\n")
    assert CliRunner().invoke(app, ["facts"]).exit_code == 0
    assert (project / "facts.yaml").read_bytes() == before


def test_a_range_of_matrix_yaml_means_the_versions_that_are_known(index: PackageIndex, project: Path) -> None:
    """`facts` reads the releases that it admits and that are newer; until then a plan has the same cells as before."""
    add_torch(index, TORCH)
    for release in ("2.98.1", "2.15.0"):
        files = {**TORCH, "torch/version.py": f"__version__ = '{release}+cu139'\ncuda: Optional[str] = '13.9'\n"}
        pure_wheel(index.root / "default", "torch", release, files, tag=TAGS[0])
    add_toolkit(index)
    (project / "matrix.yaml").write_text('torch: ">=2.14"\ncuda: "13.*"\npython: ">=3.12,<3.13"\nextensions: [ops]\n')

    def served() -> set[str]:
        builds = json.loads(CliRunner().invoke(app, ["plan", "--json"]).stdout)["builds"]
        return {cell.partition("-")[0] for build in builds for cell in build["serves"]}

    assert served() == {"torch2.14.1", "torch2.15.0"}
    assert CliRunner().invoke(app, ["facts"]).exit_code == 0
    assert sorted(read_rows(project / "facts.yaml")["torch"]) == ["2.98.1", "2.99.0"]
    assert served() == {"torch2.14.1", "torch2.15.0", "torch2.98.1", "torch2.99.0"}
    assert "nothing to read" in CliRunner().invoke(app, ["facts"]).stderr


def test_a_difference_from_the_index_fails_the_check(index: PackageIndex, project: Path) -> None:
    add_torch(index, TORCH)
    add_toolkit(index)
    CliRunner().invoke(app, ["facts"])
    file = project / "facts.yaml"
    file.write_text(file.read_text().replace("cxx_standard: '23'", "cxx_standard: '20'"))
    said = CliRunner().invoke(app, ["facts", "--check"])
    assert said.exit_code == 1
    assert "torch 2.99.0, cxx_standard: the file has 20, the index 23" in said.stderr


def test_variants_of_other_cuda_versions_come_from_pytorchs_index(index: PackageIndex, project: Path) -> None:
    add_torch(index, TORCH)
    add_toolkit(index)
    add_toolkit(index, version="13.8.1")
    older = {**TORCH, "torch/version.py": "__version__ = '2.99.0+cu138'\ncuda = '13.8'\n"}
    pure_wheel(index.root / "whl/cu138", "torch", "2.99.0+cu138", older, tag=TAGS[0])
    (project / "matrix.yaml").write_text(
        MATRIX.replace("[13.9]", "[13.8, 13.9]") + f"torch_index: {index.torch_index}\n"
    )
    said = CliRunner().invoke(app, ["facts", "--cuda", "13.7"])
    assert "the index has no such wheel" in str(said.exception), "there is no toolkit of CUDA 13.7"
    assert not (project / "facts.yaml").exists()
    assert CliRunner().invoke(app, ["facts"]).exit_code == 0
    assert list(read_rows(project / "facts.yaml")["torch"]["2.99.0"]["variants"]) == ["cu139", "cu138"]
    assert "each fact is as on the package index" in CliRunner().invoke(app, ["facts", "--check"]).stderr
    (project / "matrix.yaml").write_text(MATRIX + "torch_index: http://127.0.0.1:9/{variant}/simple\n")
    (project / "facts.yaml").unlink()
    said = CliRunner().invoke(app, ["facts", "--cuda", "13.8"])
    assert "has the CUDA of the package index alone, because http://127.0.0.1:9 was not reached" in said.stderr
    assert list(read_rows(project / "facts.yaml")["torch"]["2.99.0"]["variants"]) == ["cu139"]


@pytest.mark.parametrize(
    ("changed", "where", "says"),
    [
        (
            {"torch/version.py": "__version__ = '2.98.0'\ncuda = '13.9'\n"},
            "version.py",
            "torch 2.98.0, not torch 2.99.0",
        ),
        ({"torch/version.py": ""}, "version.py", "it states no version"),
        ({"torch/version.py": "__version__ = '2.99.0'\n"}, "version.py", "does not state the CUDA"),
        ({"torch/lib/libtorch_python.so": b"\0sm\0"}, "libtorch_python.so", "0 lists of GPU architectures"),
        ({"torch/lib/libtorch_python.so": b"sm_75 sm_90\0sm_75 sm_80\0"}, "libtorch_python.so", "2 lists of GPU arch"),
        ({"torch/utils/cpp_extension.py": "def ("}, "cpp_extension.py", "it is no Python"),
        ({"torch/utils/cpp_extension.py": "'-std=c++20'"}, "cpp_extension.py", "it has no MINIMUM_GCC_VERSION"),
        ({"torch/utils/cpp_extension.py": EXTENSION.replace("20", "")}, "cpp_extension.py", "no C++ standard"),
        (
            {"torch/utils/cpp_extension.py": EXTENSION.replace("(16, 0)", "f()")},
            "cpp_extension.py",
            "CUDA_GCC_VERSIONS",
        ),
        ({"torch/utils/cpp_extension.py": EXTENSION.replace("'7.5'", "'x'")}, "cpp_extension.py", "supported_arches"),
        ({"torch/include/ATen/ATen.h": None}, "torch-2.99.0", "it has 0 files torch/include/ATen/ATen.h"),
    ],
)
def test_a_torch_that_does_not_say_what_is_asked(
    index: PackageIndex, changed: dict[str, str | bytes | None], where: str, says: str
) -> None:
    files = {name: content for name, content in {**TORCH, **changed}.items() if content is not None}
    add_torch(index, files)
    with refused(Code.SOURCE_DIFFERS, where, says):
        torch_facts("2.99")


def test_indexes_that_lie(index: PackageIndex, project: Path) -> None:
    with refused(Code.PACKAGE_NOT_FOUND, "torch 2.99"):
        torch_facts("2.99")
    add_torch(index, CPU_TORCH)
    with refused(Code.SOURCE_DIFFERS, "no wheel of the package index was built with CUDA"):
        torch_facts("2.99")
    add_torch(index, TORCH)
    other = {**TORCH, "torch/version.py": "__version__ = '2.99.0'\ncuda = '13.8'\n"}
    add_torch(index, other, "cp313-cp313-manylinux_2_28_aarch64")
    with refused(Code.SOURCE_DIFFERS, "aarch64", "CUDA 13.8, and the wheel for x86_64 CUDA 13.9"):
        torch_facts("2.99")
    for file in (index.root / "default").glob("torch-*cp313-*.whl"):
        file.write_bytes(file.read_bytes()[:-30])
    with refused(Code.SOURCE_DIFFERS, "cp313", "the wheel cannot be read"):
        torch_facts("2.99")
    assert not (project / "facts.yaml").exists()


@pytest.mark.parametrize(
    ("ptxas", "limit", "says"),
    [
        ("#!/bin/sh\n", "#if __GNUC__ > 17\n", "ptxas: it names no architecture"),
        (
            PTXAS.replace("current version", "version"),
            "#if __GNUC__ > 17\n",
            "ptxas: it does not say its version of PTX",
        ),
        (PTXAS, "", "host_config.h: it does not limit gcc"),
    ],
)
def test_a_toolkit_that_does_not_say_what_is_asked(index: PackageIndex, ptxas: str, limit: str, says: str) -> None:
    add_toolkit(index, ptxas, limit)
    with refused(Code.SOURCE_DIFFERS, says):
        toolkit_facts(Cuda(13, 9))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[", "facts.yaml"),
        ("format: 2\n", "a different format"),
        ("format: 1\ntorch: {2.99.0: {python: [3.12]}}\n", "the key 'companions' is missing"),
        ("format: 1\ntoolkits: {13.9: {archs: [x], ptx: 9.9, gcc_max: 17}}\n", "'x' is not a GPU architecture"),
    ],
)
def test_a_file_that_is_no_facts_file(project: Path, text: str, says: str) -> None:
    (project / "facts.yaml").write_text(text)
    use_facts_of(project)
    with refused(Code.FILE_INVALID, "facts.yaml", says):
        Compat.load()


def test_a_row_of_this_version_wins_and_a_patch_release_joins_its_series(project: Path) -> None:
    row = "python: [3.12], variants: {cu999: {x86_64: [1.0]}}, default: cu999, cxx_standard: 20,"
    row += " gcc_max: {}, arch_list: [], companions: {}"
    (project / "facts.yaml").write_text(f"format: 1\ntorch: {{2.11.0: {{{row}}}, 2.11.7: {{{row}}}}}\n")
    use_facts_of(project)
    compat = Compat.load()
    assert compat.torch(Torch.parse("2.11.0")).default == Cuda(13, 0)
    assert str(compat.resolve_torch("2.11")) == "2.11.7"
    assert [str(python) for python in compat.torch(Torch.parse("2.11.7")).pythons[Torch.parse("2.11.7")]] == ["3.12"]


def test_a_build_reads_what_is_unknown_and_goes_on(
    index: PackageIndex, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_torch(index, TORCH)
    add_toolkit(index)
    file = project / "facts.yaml"
    with refused(Code.KEY_INVALID, "torch 2.99"):
        raise CliRunner().invoke(app, ["plan"]).exception or AssertionError
    monkeypatch.setenv("UV_OFFLINE", "1")
    with refused(Code.NETWORK_UNREACHABLE, "torch 2.99"):
        raise CliRunner().invoke(app, ["build"]).exception or AssertionError
    assert not file.exists()
    monkeypatch.delenv("UV_OFFLINE")
    said = CliRunner().invoke(app, ["build", "--python", "3.11"])
    assert "torch 2.99 is unknown to this version of buildfarm: read its facts" in said.stderr
    with refused(Code.NO_CELL_LEFT, "3.11"):
        raise said.exception or AssertionError
    assert file.exists()


@pytest.mark.usefixtures("index")
def test_what_cannot_be_read_keeps_the_error_with_its_place(project: Path) -> None:
    for words in (["build"], ["smoke"], ["plan"]):
        (project / "matrix.yaml").write_text(MATRIX.replace("2.99", "2.11").replace("13.9", "thirteen"))
        with refused(Code.KEY_INVALID, "matrix.yaml:2:8", "'thirteen' is not a CUDA version"):
            raise CliRunner().invoke(app, words).exception or AssertionError(words)
        (project / "matrix.yaml").write_text(MATRIX.replace("2.99", "2.11").replace("13.9", "13.0"))
        with refused(Code.VALUE_INVALID, "--torch abc"):
            raise CliRunner().invoke(app, [*words, "--torch", "abc"]).exception or AssertionError(words)
