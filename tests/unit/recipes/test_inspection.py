"""Small source trees and what the inspection finds; what SOURCE may be; matrix.yaml keeps what the user wrote."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from builder.diagnosis.setup_script import read_setup_script
from builder.matrix.axes import Cuda, Torch
from builder.matrix.config import GitSource, PathSource, SdistSource
from builder.matrix.yaml_document import read_document
from builder.recipes.fetch import PinnedSource, parse_reference
from builder.recipes.inspection.draft_recipe import inspect_source
from builder.recipes.inspection.metadata import Metadata, completed
from builder.recipes.inspection.native_code import needless_headers, too_many_headers
from builder.recipes.project_files import Draft, add_extension

PYBIND = "#include <torch/extension.h>\nPYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {}\n"
SETUP = """\
import os
from setuptools import find_packages, setup
from torch.utils.cpp_extension import BuildExtension, CUDAExtension
%s
setup(name="small-ops", version="1.2.0", packages=find_packages(), cmdclass={"build_ext": BuildExtension},
      ext_modules=[CUDAExtension(name="small_ops._C", sources=["csrc/bind.cpp", "csrc/ops.cu"]%s)]%s)
"""
BACKEND = '[build-system]\nbuild-backend = "hatchling.build"\n'
PROJECT = '[project]\nname = "small-ops"\nversion = "0.3"\n'
#: Keys of `write` for files that many tests write.
NAMES = {
    "setup": "setup.py",
    "project": "pyproject.toml",
    "package": "small_ops/__init__.py",
    "cmake": "CMakeLists.txt",
    "bind": "csrc/bind.cpp",
}


def write(tree: Path, files: dict[str, str | None]) -> None:
    """Write files, or delete those that are None, by their paths or the keys of NAMES."""
    for name, text in files.items():
        path = tree / NAMES.get(name, name)
        if text is None:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)


def script(line: str = "", options: str = "", more: str = "") -> str:
    """A setup.py with a line of its own, options of its extension, and arguments of `setup()`."""
    return SETUP % (line, options, more)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    files = {"setup": script(), "package": "import torch\nfrom small_ops import _C\n", "bind": PYBIND}
    write(tmp_path, {**files, "csrc/ops.cu": "__global__ void k() {}\n"})
    return tmp_path


def inspect(tree: Path, complete: Callable[[Metadata], Metadata] | None = None) -> Draft:
    return inspect_source(PinnedSource(PathSource(tree), str(tree), "folder_name"), tree, complete)


def keys(draft: Draft) -> dict[str, object]:
    return {key: value for key, (value, _) in draft.keys.items()}


def found(draft: Draft) -> str:
    return "\n".join(f"{'? ' * each.question}{each.found} -> {each.consequence} " for each in draft.findings)


def test_a_plain_pybind_extension(tree: Path) -> None:
    draft = inspect(tree)
    assert keys(draft) == {
        "name": "small_ops",
        "version": "1.2.0",
        "source": {"path": "."},
        "abi": "cpython",
        "imports": ["small_ops", "small_ops._C"],
        "memory_per_job": "3GiB",
    }
    assert "? " not in found(draft)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("cuda = torch.cuda.is_available()", {"assume_cuda": True}),
        ("arch = torch.cuda.get_device_capability() if torch.cuda.is_available() else None", {"assume_cuda": True}),
        ("count = torch.cuda.device_count()", {"assume_cuda": True}),
        ('cuda = os.getenv("OPS_FORCE_CUDA", "0") == "1"', {"env": {"OPS_FORCE_CUDA": "1"}}),
        ('cuda = os.environ.get("BUILD_CUDA_EXT") == "TRUE"', {"env": {"BUILD_CUDA_EXT": "TRUE"}}),
        ('build = int(os.environ.get("BUILD_EXT", "0")) == 1', {"env": {"BUILD_EXT": "1"}}),  # colossalai 0.5.0
        ('skip = os.getenv("MMCV_WITH_OPS", "1") == "0"', {"env": {"MMCV_WITH_OPS": "1"}}),
        ('import urllib.request\nx = os.getenv("OPS_FORCE_BUILD") == "TRUE"', {"env": {"OPS_FORCE_BUILD": "TRUE"}}),
        ('from urllib import parse\nx = os.getenv("OPS_FORCE_BUILD", "no curl here") == "TRUE"', {"env": None}),
        ('flags = ["-gencode=arch=compute_80,code=sm_80", "arch=compute_90"]', {"override_architectures": True}),
        ('os.environ["TORCH_CUDA_ARCH_LIST"] = "3.7+PTX;7.5"', {"override_architectures": True}),  # pointnet2_ops
        ('os.environ.setdefault("TORCH_CUDA_ARCH_LIST", "7.5")', {"override_architectures": None}),
        ('cuda = "WITH_CUDA" in os.environ', {"env": {"WITH_CUDA": "1"}}),
        # tree_filter stops without the variable
        ('assert "LD_LIBRARY_PATH" in os.environ', {"env": {"LD_LIBRARY_PATH": "/usr/lib"}}),
        ('CppExtension("a._D", ["a.cpp"], include_dirs=["inc", root])', {"env": {"CPATH": "../../inc"}}),
        ("import pybind11, numpy, pkg_resources", {"build_requires": ["pybind11", "setuptools<82"]}),
        # buildfarm sets FORCE_CUDA already
        ('x = torch.cuda.is_available() or os.getenv("FORCE_CUDA", "0") == "1"', {"env": None, "assume_cuda": None}),
    ],
)
def test_setup_py_decides_a_key(tree: Path, line: str, expected: dict[str, object]) -> None:
    write(tree, {"setup": script(line)})
    draft = keys(inspect(tree))
    assert {key: draft.get(key) for key in expected} == expected


#: What is written over the plain tree, what keys the recipe then has (None: not), and parts of the findings.
SOURCES: dict[str, tuple[dict[str, str | None], dict[str, object], list[str]]] = {
    "only the user can decide about a variable": (
        {"setup": script('arch = os.getenv("OPS_CUDA_ARCH", "")')},
        {"env": None},
        ["? setup.py reads OPS_CUDA_ARCH"],
    ),
    "names made in a loop": (
        {
            "setup": 'root = "small_ops"\nfor part in parts:\n'
            '    CUDAExtension(f"{root}._{part}", glob.glob("csrc/*.cu"))\n'
            'setup(name="small-ops", version="1", cmdclass={"x": BuildExtension.with_options(use_ninja=False)})\n'
        },
        {"imports": ["small_ops"]},
        ["the package is small_ops"],
    ),
    "a package that does not import torch": (
        {"package": "def call():\n    import torch\n"},
        {"needs_first": ["torch"], "imports": ["small_ops"]},
        [],
    ),
    "a module beside a package": (
        {"setup": script().replace("small_ops._C", "small_backend")},
        {"imports": ["small_ops"]},
        [],
    ),
    "a module without a package": (
        {"setup": script().replace("small_ops._C", "small_backend"), "package": None},
        {"imports": ["small_backend"], "needs_first": ["torch"]},
        [],
    ),
    "a module beside packages of other names": (  # models/ops of Deformable-DETR
        {
            "setup": script(more=', packages=["functions"]').replace("small_ops._C", "Small_Ops"),
            "package": None,
            "functions/__init__.py": "import torch\n",
        },
        {"imports": ["Small_Ops"], "needs_first": ["torch"]},
        [],
    ),
    "an extension without sources only marks the platform": (
        {"setup": 'setup(name="small-ops", version="1.0", ext_modules=[Extension(name="small_mark", sources=[])])\n'},
        {"imports": ["small_ops"]},
        ["the package is small_ops"],
    ),
    "an extension whose sources are computed": (
        {
            "setup": script()
            .replace("small_ops._C", "small_Backend")
            .replace('"csrc/bind.cpp", "csrc/ops.cu"', "*find()"),
            "package": None,
        },
        {"imports": ["small_Backend"], "needs_first": ["torch"]},
        [],
    ),
    "CMake with its own backend": (
        {
            "setup": None,
            "cmake": "set(CMAKE_CUDA_ARCHITECTURES 80 90)  # 70\n",
            "project": '[build-system]\nrequires = ["scikit-build-core>=0.8", "torch<2.8"]\n'
            f'build-backend = "scikit_build_core.build"\n{PROJECT}license = "MIT"\nrequires-python = ">=3.9"\n',
        },
        {"build_requires": ["cmake", "scikit-build-core>=0.8"], "python": ">=3.9", "override_architectures": True},
        ["CMake sets GPU architectures by hand"],
    ),
    # package_dir names the folder of the package; CMake runs in a shell.
    "imports without a requirement": (
        {
            "package": "import os, torch\nfrom . import shapes\nif TYPE_CHECKING:\n    import typed\n"
            "try:\n    import optional\nexcept ImportError:\n    pass\n",
            "small_ops/shapes.py": "import cv2, einops, numpy\ndef f():\n    import scipy\n",
            "small_ops/unused.py": "import pandas\n",
            "setup": script(more=', install_requires=["einops>=0.6", "numpy<1.20"]'),  # torch-points-kernels 0.7.0
        },
        {"requires": ["numpy", "opencv-python-headless"], "needs_first": None},
        ["no Python from 3.12 on can install numpy<1.20"],
    ),
    "a package whose import imports no torch": (
        {"package": "from small_ops._C import run\n", "small_ops/train.py": "import torch\n"},
        {"needs_first": ["torch"]},
        ["small_ops does not import torch itself"],
    ),
    "folders that a setup.py without a list of packages does not install": (  # pointops of point-transformer
        {
            "setup": 'setup(name="small-ops", version="1.0", ext_modules=[CppExtension("small_cuda", ["a"])])\n',
            "functions/__init__.py": "import numpy\n",
        },
        {"imports": ["small_cuda"], "requires": None, "needs_first": ["torch"]},
        [],
    ),
    "examples beside the module": (  # jointbilateralfilter-torch 1.0.0
        {
            "setup": script(),
            "package": None,
            "small_ops.egg-info/top_level.txt": "layer\nexample\nfacade\n",
            "layer.py": "import torch\n",
            "example.py": "import matplotlib\nfrom layer import run\nrun()\n",
            "facade.py": "from layer import run\n",
        },
        {"imports": ["facade", "layer"], "requires": None},
        [],
    ),
    "pins beside an old torch": (  # triple-walk 0.0.4
        {"setup": script(more=', install_requires=["torch==1.9.0", "numpy==1.19.5", "pandas>=1"]')},
        {"requires": ["numpy"]},
        ["the metadata pins torch==1.9.0 -> its other pins are of that environment"],
    ),
    "a torchvision of one torch": (  # polygon-iou 1.0.7
        {"setup": script(more=', install_requires=["torch", "torchvision==0.8.2", "pillow"]')},
        {"requires": ["torchvision"]},
        ["the metadata pins torchvision==0.8.2"],
    ),
    "a pin without a torch": ({"setup": script(more=', install_requires=["numpy==1.26.4"]')}, {"requires": None}, []),
    "setup.cfg names what the build and the wheel need": (
        {
            "setup": script(),
            "setup.cfg": "[options]\nsetup_requires = pyscaffold>=3.2\ninstall_requires =\n  einops\n",
            "package": "import torch, einops, numpy\n",
        },
        {"build_requires": ["pyscaffold>=3.2"], "requires": ["numpy"]},
        [],
    ),
    "a setup script that runs CMake": (
        {
            "small_ops": None,
            "csrc/python/small_ops/__init__.py": "import torch\nfrom small_ops import _C\n",
            "cmake/__init__.py": "",
            "cmake": "project(x)\n",
            "setup": 'from setuptools import Extension, setup\nname = "small_ops"\n'
            'command = f"""\n  cd {where}\n\n  cmake {args}\n"""\n'
            'setup(name=name, version="1.0", package_dir={name: "csrc/python/small_ops"}, packages=[name],\n'
            '      ext_modules=[Extension("_small_ops", [])])\n',
        },
        {"imports": ["small_ops"], "build_requires": ["cmake"], "needs_first": None},
        [],
    ),
    "Pythons of setup.py": ({"setup": script(more=', python_requires=" >= 3.12"')}, {"python": ">=3.12"}, []),
    "Pythons of pyproject.toml": (
        {"project": f'{PROJECT}requires-python = ">=3.8,!=3.11.*"\n'},
        {"python": ">=3.8,!=3.11.*"},
        [],
    ),
    "Pythons that a call returns": ({"setup": script(more=', python_requires=f">={low()}"')}, {"python": None}, []),
    # transformer-engine-torch 2.20.2
    "a compiled module with the name of the project": (
        {"setup": "setup(name='ops-torch', version='1.0', ext_modules=[CppExtension('ops_torch', 'a')])"},
        {"imports": ["ops_torch"]},
        ["setup.py compiles ops_torch "],
    ),
    "an sdist lists its packages": (
        {
            "small_ops": None,
            "small.egg-info/top_level.txt": "small\nhelper\nsmall_ops\n",
            "python/small/__init__.py": "",
            "helper.py": "import torch\n",
            "evaluation/__init__.py": "",
        },
        {"imports": ["helper", "small"], "needs_first": None},
        [],
    ),
    "setup.py compiles for its own CPU": (
        {"setup": script("flags = ['-O3', '-march=native']")},
        {},
        ["setup.py compiles for the CPU of this machine"],
    ),
    "CMake compiles for its own CPU": (
        {"cmake": "# -mcpu=native\ntarget_compile_options(ops PRIVATE -mtune=native)\n"},
        {},
        ["CMake compiles for the CPU of this machine"],
    ),
    "sources with one stem, and texts that are no patterns": (
        {
            "setup": script().replace('"csrc/bind.cpp",', '"csrc/ops.cpp", "", "**.cu", f"{here}/x.cu", "../*.cu",'),
            "csrc/ops.cpp": "",
        },
        {},
        ["? setup.py compiles csrc/ops.cpp and csrc/ops.cu into one module"],
    ),
    "options of the command line": (
        {
            "setup": script(
                "if '--cuda_ext' in sys.argv and '--inplace' not in sys.argv:\n    pass\n"
                "no_gpu = '--no-cuda' in sys.argv\n"
                "for word in sys.argv:\n    if word.startswith('--blas=') or word == '--cpu_only':\n        pass"
            )
        },
        {"config_settings": {"--global-option": ["--cuda_ext"]}},
        ["--no-cuda, --blas=… and --cpu_only", "[--cuda_ext, --no-cuda]"],
    ),
}


@pytest.mark.parametrize(("files", "expected", "says"), SOURCES.values(), ids=SOURCES)
def test_what_follows_from_a_source(
    tree: Path, files: dict[str, str | None], expected: dict[str, object], says: list[str]
) -> None:
    write(tree, files)
    draft = inspect(tree)
    assert {key: keys(draft).get(key) for key in expected} == expected
    for text in says:
        assert text in found(draft)
    assert "small_mark" not in found(draft)


@pytest.mark.parametrize(
    ("header", "options", "abi"),
    [
        ("torch/csrc/stable/library.h", "", [{"class": "stable", "torch": ">=2.10"}]),
        ("torch/library.h", ", py_limited_api=True", "cpython"),
    ],
)
def test_headers_decide_the_abi_class(tree: Path, header: str, options: str, abi: object) -> None:
    bind = f"#include <{header}>\nTORCH_LIBRARY(small_ops, m) {{}}\n"
    write(tree, {"setup": script(options=options), "bind": bind})
    draft = inspect(tree)
    assert (keys(draft)["abi"], keys(draft)["imports"]) == (abi, ["small_ops"])


@pytest.mark.parametrize(
    ("value", "oldest"),
    [("0x020b000000000000", "2.11"), ("0x0209000000000000", "2.10"), ("0x0210000000000000", "2.10")],
)
def test_the_source_says_with_which_torch_the_stable_abi_begins(tree: Path, value: str, oldest: str) -> None:
    bind = "#include <torch/csrc/stable/library.h>\nTORCH_LIBRARY(small_ops, m) {}\n"
    write(tree, {"setup": script(f'macros = ["-DTORCH_TARGET_VERSION={value}"]'), "bind": bind})
    assert keys(inspect(tree))["abi"] == [{"class": "stable", "torch": f">={oldest}"}]


@pytest.mark.parametrize(
    ("code", "warns"), [("_C", True), ("TORCH_EXTENSION_NAME", False), ("small_ops", False), ("small_ops_C", False)]
)
def test_namespaces_that_many_projects_use(tree: Path, code: str, warns: bool) -> None:
    """Report 29: two packages with TORCH_LIBRARY(_C, m) cannot be imported in one process."""
    write(tree, {"bind": f"#include <torch/library.h>\nTORCH_LIBRARY({code}, m) {{}}\n"})
    assert ("many projects register ops in a namespace _C" in found(inspect(tree))) is warns


def test_a_pattern_of_source_files_by_join(tree: Path) -> None:
    """pyronn-torch 0.2.3 imports the function; `*` would be every file of the source."""
    write(tree, {"setup": 'from os.path import join\nCUDAExtension("small_ops._C", glob(join("csrc", "*.cu")))\n'})
    (extension,) = read_setup_script(tree).extensions
    assert extension.sources == ("csrc/*.cu",)


@pytest.mark.parametrize(
    ("text", "by_hand"),
    [
        ("set_target_properties(x PROPERTIES\n  CUDA_ARCHITECTURES all CXX_STANDARD 17)", True),
        ('set(X_CUDA_ARCHITECTURES\n  "86-real;89-real;75-virtual")', True),
        ("set(CMAKE_CUDA_ARCHITECTURES native)", True),
        ("if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)\nset(CMAKE_CUDA_ARCHITECTURES OFF)\nendif()", False),
        ("set_target_properties(x PROPERTIES CUDA_ARCHITECTURES ${TORCH_ARCHS})", False),
    ],
)
def test_architectures_in_cmake_files(tree: Path, text: str, by_hand: bool) -> None:
    write(tree, {"setup": None, "cmake": text, "project": PROJECT})
    assert keys(inspect(tree)).get("override_architectures", False) is by_hand


@pytest.mark.parametrize("imports", ["torch", "ctypes"])
def test_a_library_that_no_header_ties_to_torch(tree: Path, imports: str) -> None:
    write(tree, {"setup": None, "bind": 'extern "C" void f() {}\n', "project": PROJECT + BACKEND})
    write(tree, {"package": f"import {imports}\n"})
    draft = inspect(tree)
    assert keys(draft)["abi"] == "cpython"
    assert ("is this an extension of PyTorch?" in found(draft)) is (imports == "ctypes")


def test_what_the_files_do_not_state_comes_from_the_build_backend(tree: Path) -> None:
    made_up = "setup(name=n(), version=v(), packages=p(), ext_modules=found(), install_requires=r())\n"
    write(tree, {"setup": made_up})
    asked = inspect(tree)
    assert (asked.unknown, keys(asked)["version"]) == (("name", "version"), "0.0.0")
    write(tree, {"setup": f"x = '1'\nif day:\n    x += day\n{made_up.replace('v()', 'x')}"})  # PyTorch-Encoding 1.2.2
    assert inspect(tree).unknown == ("name", "version")
    assert "? the version is not a constant" in found(asked)
    text = "Name: small-ops-cu130\nVersion: 0.7.1.post130+local\nRequires-Dist: einops\nRequires-Python: >=3.10\n"
    draft = inspect(tree, lambda stated: completed(stated, text, Torch(2, 11, 0), Cuda(13, 0)))
    names = (draft.name, keys(draft)["name"], keys(draft)["version"])
    assert names == ("small_ops_cu", "small_ops_cu{cuda}", "0.7.1.post{cuda}")
    assert (draft.python, draft.unknown) == (">=3.10", ())
    assert "? " not in found(draft)


@pytest.mark.filterwarnings("error")
def test_the_source_is_read_and_not_run_and_its_warnings_are_not_shown(tree: Path) -> None:
    write(tree, {"setup": f"open({str(tree / 'ran')!r}, 'w')\n{script()}pattern = '\\d'\n"})
    write(tree, {"package": "import torch\npattern = '\\d'\n"})
    assert keys(inspect(tree))["version"] == "1.2.0"
    assert not (tree / "ran").exists()


def test_a_repository_pins_its_commit(tree: Path) -> None:
    source = GitSource("https://host/name", "0" * 40, "python")
    draft = inspect_source(PinnedSource(source, "https://host/name@v1", "name"), tree)
    assert keys(draft)["source"] == {"git": "https://host/name", "revision": "0" * 40, "subdirectory": "python"}


@pytest.mark.parametrize(
    ("lines", "needed"),
    [
        ("import einops, own_tool", ["einops"]),
        ("def build():\n    import einops\n", ["einops"]),
        ("try:\n    import einops\nexcept ImportError:\n    einops = None", None),
        ("try:\n    import einops\nexcept ImportError:\n    raise RuntimeError('pip install einops')", ["einops"]),
        ("with contextlib.suppress(ImportError):\n    import einops", None),
        ("import helper", ["einops"]),
        ("exec(open('helper.py').read())", ["einops"]),
    ],
)
def test_modules_that_a_build_can_do_without(tree: Path, lines: str, needed: object) -> None:
    """deepspeed 0.19.8, mmcv 2.2.0: a project that has the name of an optional module may be somebody else's."""
    write(tree, {"helper.py": "import einops\n", "setup": script(lines)})
    assert keys(inspect(tree)).get("build_requires") == needed


@pytest.mark.parametrize("header", ["nvrtc.h", "gpulite/gpulite.hpp", "cuda_runtime.h"])
@pytest.mark.parametrize("extension", ["CUDAExtension", "Extension"])
def test_cuda_code_of_the_run_time(tree: Path, header: str, extension: str) -> None:
    """sphericart-torch 1.0.5 and vesin-torch 0.6.2: nvcc compiles nothing, and the wheel has the source as text."""
    setup = script().replace("CUDAExtension(", f"{extension}(")
    write(tree, {"bind": f"{PYBIND}#include <{header}>\n", "setup": setup})
    optional = header != "cuda_runtime.h" and extension == "Extension"
    assert keys(inspect(tree)).get("cuda") == ("optional" if optional else None)


@pytest.mark.parametrize(
    ("code", "needless"),
    [
        ("  #  include <torch/extension.h>\n// no PYBIND11_MODULE here", True),
        ("#include <torch/types.h>", False),
        ("#include <torch/extension.h>\nvoid f(py::object x) {}", False),
        ("#include <torch/extension.h>\n#define OPS TORCH_LIBRARY(a, m)", False),
        ("#include <torch/extension.h>\nstruct F : torch::autograd::Function<F> {};", False),
    ],
)
def test_a_cuda_file_that_needs_only_the_types_of_torch_is_known(tmp_path: Path, code: str, needless: bool) -> None:
    write(tmp_path, {"csrc/a.cu": code})
    assert needless_headers(tmp_path) == (["csrc/a.cu"] if needless else [])
    assert too_many_headers(["a.cu", "b.cu"]).startswith("a.cu, b.cu include <torch/extension.h>, and with it pybind11")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("torch-scatter==2.1.2", SdistSource("torch-scatter", "2.1.2", "")),
        ("torch-scatter", SdistSource("torch-scatter", "", "")),
        ("https://host/owner/name", GitSource("https://host/owner/name", "", "")),
        ("https://host/owner/name.git@v1.0", GitSource("https://host/owner/name.git", "v1.0", "")),
        ("https://user:key@host/name@feature/x", GitSource("https://user:key@host/name", "feature/x", "")),
        ("git+https://host/name@main#subdirectory=python", GitSource("https://host/name", "main", "python")),
        ("git+https://host/name@v1#egg=z&subdirectory=a/b", GitSource("https://host/name", "v1", "a/b")),
        ("git@host:owner/name.git@main", GitSource("git@host:owner/name.git", "main", "")),
        ("git@host:owner/name.git", GitSource("git@host:owner/name.git", "", "")),
    ],
)
def test_source_is_parsed(text: str, expected: object) -> None:
    assert parse_reference(text) == expected


def test_a_folder_and_a_local_repository(tmp_path: Path) -> None:
    (tmp_path / "name" / ".git").mkdir(parents=True)
    name = tmp_path / "name"
    assert parse_reference(str(name)) == PathSource(name)
    assert parse_reference(f"{name}@v1") == GitSource(name.as_uri(), "v1", "")


HEAD = "# my versions\ntorch: [2.11]  # one\n"
TAIL = "\n# the end\narchs: [9.0]\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("extensions:\n  - a  # first\n  - b\n", "extensions:\n  - a  # first\n  - b\n  - new\n"),
        ("extensions:\n- a # first\n", "extensions:\n- a # first\n- new\n"),
        ("extensions: [a, b] # all\n", "extensions: [a, b, new] # all\n"),
        ("extensions: []\n", "extensions: [new]\n"),
        ("extensions: [\n  a,\n  b,\n]\n", "extensions: [\n  a,\n  b, new\n]\n"),
        ("extensions:  # none yet\n", "extensions:  # none yet\n  - new\n"),
        ("extensions: [a, new]\n", "extensions: [a, new]\n"),
    ],
)
@pytest.mark.parametrize("tail", ["", TAIL], ids=["at the end", "before other keys"])
def test_extensions_grow_and_the_rest_stays(tmp_path: Path, before: str, after: str, tail: str) -> None:
    path = tmp_path / "matrix.yaml"
    path.write_text(HEAD + before + tail)
    add_extension(path, "new")
    assert path.read_text() == HEAD + after + tail
    assert read_document(path).data["extensions"][-1] == "new"


def test_a_file_without_the_key_and_without_a_last_newline(tmp_path: Path) -> None:
    path = tmp_path / "matrix.yaml"
    path.write_text("torch: [2.11]")
    add_extension(path, "a b: c")
    assert read_document(path).data == {"torch": ["2.11"], "extensions": ["a b: c"]}
