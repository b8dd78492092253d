"""What sources expect around them: pip, options, git, a toolkit, names and versions that are not constants.

Each source is a C extension that setuptools and gcc build in a second. torch is a stub.
"""

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from ctypes.util import find_library
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from builder.commands.add import Added, AddOptions, run_add
from builder.commands.building.build import run_build
from builder.diagnosis.first_error import first_error
from builder.diagnosis.known_errors import hints_for
from builder.errors import BuildfarmError, Code
from builder.matrix.axes import Cuda, Torch
from builder.proof import Check, Verdict
from builder.publish.results import BuildResult
from builder.recipes.project_files import Draft
from builder.store import StoredBuild
from builder.wheelfile.facts import read_facts
from tests.conftest import committed, git
from tests.fixtures.small_project import MODULE, SmallProject, small_project
from tests.refused import refused
from tests.unit.loopback import PYTHON, pure_wheel

pytestmark = [pytest.mark.network, pytest.mark.slow]

SETUP = """\
from setuptools import Extension, setup

setup(name="t0", version="1.0", packages=["t0"], ext_modules=[Extension("t0._C", ["t0/csrc/c.c"])])
"""
#: A pyproject.toml that names its backend, so that no release of uv warns.
PYPROJECT = '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta:__legacy__"\n'


def add(project: SmallProject, source: str) -> Added:
    """`buildfarm add` for one cell."""
    options = AddOptions(source=source, torch=["2.11"], cuda=["13.0"], python=[str(PYTHON)])
    return run_add(replace(options, matrix=project.options().matrix, store=project.store))


@dataclass(frozen=True)
class Sources:
    """A project, and the folder of the sources of its extensions."""

    project: SmallProject
    folder: Path

    def write(self, setup: str = SETUP, files: Mapping[str, str] | None = None) -> Path:
        """Write the source t0; `files` are further files, or replace those of t0."""
        code = MODULE.format(answer=42)
        known = {"setup.py": setup, "t0/__init__.py": "import torch\nfrom . import _C\n", "t0/csrc/c.c": code}
        for name, text in {**known, "pyproject.toml": PYPROJECT, **(files or {})}.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return self.folder

    def add(self) -> Added:
        """`buildfarm add` of the folder, for one cell."""
        return add(self.project, str(self.folder))

    def build(self) -> BuildResult:
        """`buildfarm build` of the one extension."""
        (result,) = run_build(self.project.options())[1]
        return result

    def good(self) -> BuildResult:
        """The result of a build that must not fail."""
        result = self.build()
        assert result.error is None
        return result

    def stored(self) -> StoredBuild:
        """The wheel of a build that must not fail."""
        stored = self.good().stored
        assert stored is not None
        return stored

    def error(self) -> BuildfarmError:
        """The error of a build that must fail."""
        error = self.build().error
        assert error is not None
        return error

    def recipe(self, line: str = "", *changes: tuple[str, str]) -> None:
        """Add a line to the recipe, and replace texts in it."""
        path = self.folder / "extension.yaml"
        text = path.read_text() + (f"{line}\n" if line else "")
        for old, new in changes:
            text = text.replace(old, new)
        path.write_text(text)

    def draft(self) -> Draft:
        """What `buildfarm add` of the folder found and asks."""
        draft = self.add().draft
        assert draft is not None
        return draft


@pytest.fixture(scope="session")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wheels of pip, setuptools and wheel."""
    folder = tmp_path_factory.mktemp("tools")
    words = ("-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", folder)
    subprocess.run([sys.executable, *words, "pip", "setuptools", "wheel", "packaging"], check=True)
    return folder


@pytest.fixture
def sources(tmp_path: Path, tools: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sources]:
    with small_project(tmp_path / "project", monkeypatch) as project:
        served = project.index.root / "default"
        for name in ("pip", "setuptools", "wheel"):
            (served / f"{name}-80.0-py3-none-any.whl").unlink()
        for wheel in tools.glob("*.whl"):
            (served / wheel.name).hardlink_to(wheel)
        yield Sources(project, tmp_path / "project" / "t0")


CALL = "import subprocess, sys\nsubprocess.{}([sys.executable, '-m', 'pip', *{!r}])\n"


@pytest.mark.parametrize("where", ["setup.py", "tools/helper.py"])
def test_setup_py_calls_pip(sources: Sources, where: str) -> None:
    """Report 1: `python -m pip` works, also in a module that setup.py imports; uninstalling itself does nothing."""
    call = CALL.format("check_call", ("--version",)) + CALL.format("call", ("uninstall", "-y", "t0"))
    if where == "setup.py":
        sources.write(call + SETUP)
    else:
        sources.write("import sys\nsys.path.insert(0, '.')\nfrom tools import helper\n" + SETUP, {where: call})
    sources.add()
    sources.good()


OPTIONAL = "Extension('t0._fast', ['t0/csrc/fast.c'], optional=True)"


def test_an_optional_extension_that_does_not_compile(sources: Sources, capfd: pytest.CaptureFixture[str]) -> None:
    """Input 14: setuptools leaves it out, and the wheel works without it: a warning has the first error."""
    code = '#include <Python.h>\n#include "no_such_header.h"\n'
    used = "import torch\nfrom . import _C\ntry:\n    from . import _fast\nexcept ImportError:\n    _fast = None\n"
    sources.write(SETUP.replace("])])", f"]), {OPTIONAL}])"), {"t0/csrc/fast.c": code, "t0/__init__.py": used})
    sources.add()
    sources.good()
    said = capfd.readouterr().err
    assert (
        "t0: the wheel lacks t0._fast, an extension with `optional=True` whose compile failed: t0/csrc/fast.c:2" in said
    )
    assert "no_such_header.h: No such file or directory" in said


def test_a_wheel_without_its_only_extension(sources: Sources) -> None:
    """Input 14: without any library, the error has the same cause."""
    sources.write(SETUP.replace("])])", "], optional=True)])"), {"t0/csrc/c.c": '#include "no_such_header.h"\n'})
    sources.add()
    assert "whose compile failed: t0/csrc/c.c:1:10: fatal error: no_such_header.h" in sources.error().hints[0]


def test_a_package_without_init(sources: Sources) -> None:
    """Input 17: `find_packages()` leaves out a folder without `__init__.py`."""
    found = SETUP.replace('["t0"]', "find_packages()").replace("Extension,", "Extension, find_packages,")
    init = "import torch\nfrom . import _C\nfrom .ops.fn import fn\n"
    sources.write(found, {"t0/__init__.py": init, "t0/ops/fn.py": "def fn(): return 1\n"})
    sources.add()
    result = sources.build()
    (proof,) = (each for each in result.proofs if each.check is Check.IMPORT)
    assert proof.verdict is Verdict.FAILED
    (hint,) = proof.evidence["hints"]
    assert hint.startswith("the source has t0/ops without t0/ops/__init__.py, so `find_packages()` leaves it out")


def test_a_submodule_behind_ssh(sources: Sources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Input 29: the error names the submodule and its URL, and the hint the way round a missing key."""
    monkeypatch.setenv("GIT_SSH_COMMAND", "sh -c 'echo \"g: Permission denied (publickey).\" >&2; exit 255'")
    folder, library = sources.write(), tmp_path / "lib"
    library.mkdir()
    committed(library)
    git(folder, "init", "-q", "-b", "main")
    git(folder, "submodule", "--quiet", "add", str(library), "third_party/lib")
    git(folder, "config", "-f", ".gitmodules", "submodule.third_party/lib.url", "git@git.invalid:org/lib.git")
    committed(folder)
    with pytest.raises(BuildfarmError) as caught:
        add(sources.project, f"{folder.as_uri()}@main")
    assert "cannot fetch the submodule third_party/lib from git@git.invalid:org/lib.git: g: Perm" in str(caught.value)
    assert "`git config --global url.https://git.invalid/.insteadOf git@git.invalid:`" in caught.value.hints[0]


@pytest.mark.parametrize("kernel_confines", [True, False])
def test_setup_py_installs_another_version(
    sources: Sources, kernel_confines: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Report 1: the stored environment keeps its packages, and the next build does not get those of setup.py."""
    if not kernel_confines:
        monkeypatch.setattr("builder.wheels.local.confined", lambda argv, _: list(argv))
    sources.project.index.add("ninja", "79.0")
    requirements = "ninja==79.0\n"
    install = ("install", "--index-url", sources.project.index.default, "-r", "requirements.txt")
    sources.write(CALL.format("check_call", install) + SETUP, {"requirements.txt": requirements})
    sources.add()
    sources.recipe("", ("ninja==79.0", ""))  # as a user who does not follow `add`
    error = sources.error()
    if kernel_confines:
        assert "Could not install packages" in error.sentence
    else:
        assert "the source changed the packages of its build environment: installed ninja==79.0" in error.sentence
    assert any("`build_requires`" in hint for hint in error.hints)
    sources.write(f"import importlib.metadata\nassert importlib.metadata.version('ninja') == '80.0'\n{SETUP}")
    sources.good()
    sources.write(CALL.format("check_call", install) + SETUP)
    sources.recipe("build_requires: [ninja==79.0]")
    sources.good()


#: Extensions that are compiled only with an option, and the same for another spelling.
FLAGS = {
    "in": 'wanted = "--cuda_ext" in sys.argv\nif wanted:\n    sys.argv.remove("--cuda_ext")\n',
    "startswith": (
        "wanted = [word for word in sys.argv if word.startswith('--blas=')]\n"
        "sys.argv = [word for word in sys.argv if word not in wanted]\n"
    ),
    "argparse": (
        "import argparse\nparser = argparse.ArgumentParser()\n"
        "parser.add_argument('--force-cuda', action='store_true')\n"
        "known, rest = parser.parse_known_args()\nsys.argv[1:] = rest\nwanted = known.force_cuda\n"
    ),
}


@pytest.mark.parametrize(
    ("spelling", "option"), [("in", "--cuda_ext"), ("startswith", "--blas=openblas"), ("argparse", "--force-cuda")]
)
def test_extensions_only_with_an_option(sources: Sources, spelling: str, option: str) -> None:
    """Report 2: `add` writes or asks for `config_settings`, and without the key the failure names the option."""
    modules = 'ext_modules=[Extension("t0._C", ["t0/csrc/c.c"])]'
    assert modules in SETUP
    sources.write(f"import sys\n{FLAGS[spelling]}{SETUP.replace(modules, f'{modules} if wanted else []')}")
    added = sources.add()
    assert added.draft is not None
    assert any(option.partition("=")[0] in each.found for each in added.draft.findings)
    if not added.recipe.config_settings:
        error = sources.error()
        assert "the wheel contains no library" in error.sentence
        assert option.partition("=")[0] in error.hints[0]
        sources.recipe(f"config_settings: {{--global-option: {option}}}")
    assert sources.stored().record.record.settings["config_settings"] == {"--global-option": [option]}


DOWNLOAD = """
import os, sys
from setuptools.command.bdist_wheel import bdist_wheel
{imports}

class Cached(bdist_wheel):
    def run(self):
        if os.getenv("T0_FORCE_BUILD", "FALSE") == "TRUE":
            return super().run()
        name = "t0-1.0-{tag}-{tag}-linux_x86_64.whl"
        os.makedirs(self.dist_dir, exist_ok=True)
        {fetch}

"""
#: Four ways to fetch a file: the import, and the call.
FETCHES = {
    "import urllib": ("import urllib, urllib.request", "urllib.request.urlretrieve(URL, self.dist_dir + '/' + name)"),
    "from urllib import request": (
        "from urllib import request",
        "request.urlretrieve(URL, self.dist_dir + '/' + name)",
    ),
    "from urllib.request import": (
        "from urllib.request import urlretrieve",
        "urlretrieve(URL, self.dist_dir + '/' + name)",
    ),
    "curl": ("import subprocess", "subprocess.check_call(['curl', '-sSf', '-o', self.dist_dir + '/' + name, URL])"),
}


@pytest.mark.parametrize("spelling", FETCHES)
def test_setup_py_downloads_a_finished_wheel(sources: Sources, spelling: str) -> None:
    """Report 4: `add` turns the download off; without that, a wheel for which no compiler was called is refused."""
    tag = f"cp{PYTHON.major}{PYTHON.minor}"
    imports, fetch = FETCHES[spelling]
    ready = sources.project.root / "ready" / f"t0-1.0-{tag}-{tag}-linux_x86_64.whl"
    pure_wheel(
        ready.parent, "t0", "1.0", {"t0/_C.so": b"\x7fELF", "t0/__init__.py": ""}, tag=f"{tag}-{tag}-linux_x86_64"
    )
    script = DOWNLOAD.format(tag=tag, imports=imports, fetch=fetch.replace("URL", repr(ready.as_uri())))
    script += SETUP.replace("setup(n", "setup(cmdclass={'bdist_wheel': Cached}, n")
    if spelling == "import urllib":  # as a source that has it in a function: only `import urllib` is seen
        script = script.replace("import urllib, urllib.request", "import urllib")
        script = script.replace(
            "        urllib.request.",
            "        import importlib; importlib.import_module('urllib.request'); urllib.request.",
        )
    sources.write(script)
    assert sources.add().recipe.env == {"T0_FORCE_BUILD": "TRUE"}
    if spelling == "curl":
        sources.good()
        sources.recipe("", ("env: ", "# env: "))
        error = sources.error()
        assert "the wheel was not built here: no compiler was called" in error.sentence
        assert "T0_FORCE_BUILD" in error.hints[0]


def test_setup_py_imports_a_module_that_needs_old_setuptools(sources: Sources) -> None:
    """Report 10: the imports of a module that setup.py imports are requirements of the build too."""
    helper = "import pkg_resources\n\ndef version():\n    return pkg_resources.parse_version('1.0').public\n"
    setup = "from wheel.bdist_wheel import bdist_wheel\nfrom tools.helper import version\n" + SETUP
    sources.write("import sys\nsys.path.insert(0, '.')\n" + setup, {"tools/helper.py": helper})
    assert sources.add().recipe.build_requires == ("setuptools<82",)


HASH = "import subprocess\nhash = subprocess.check_output(['git', 'rev-parse', '--short', 'HEAD'], text=True).strip()\n"


def test_version_from_git_with_a_way_out(sources: Sources, tmp_path: Path) -> None:
    """Report 11: a repository around the build is not that of the source, and `add` finds the version."""
    commit = committed(tmp_path, files=False)[:7]
    guarded = "try:\n" + "".join(f"    {line}\n" for line in HASH.splitlines())
    guarded += "except Exception:\n    hash = ''\n"
    sources.write(guarded + SETUP.replace('version="1.0"', 'version="1.0" + (hash and "+" + hash)'))
    added = sources.add()
    assert added.recipe.version == "1.0"
    assert commit not in sources.stored().wheel.name


def test_version_from_git_without_a_way_out(sources: Sources) -> None:
    """Report 11: the failure says that a build has no `.git`."""
    sources.write(HASH + SETUP.replace('version="1.0"', 'version="1.0+" + hash'))
    assert any(each.question and "version is not a constant" in each.found for each in sources.draft().findings)
    error = sources.error()
    assert "not a git repository" in error.sentence
    assert "a build has no `.git`" in error.hints[0]


def test_a_wrong_version_ends_before_the_compile(sources: Sources) -> None:
    """Report 11: nothing is compiled before name and version are known to fit."""
    sources.write("import torch\n" + SETUP.replace('"1.0"', '"1." + torch.__version__[0]'))
    assert sources.add().recipe.version == "1.2"
    sources.recipe("", ("version: '1.2'", "version: '1.1'"), ("1.2", "1.1"))
    result = sources.build()
    assert result.error is not None
    assert "the source makes a wheel with the version 1.2 instead of 1.1" in result.error.sentence
    assert "write the same version into extension.yaml and into the source" in result.error.hints[0]
    assert result.log is not None
    assert "building 't0._C' extension" not in result.log.read_text()


def test_the_function_of_a_module_has_an_old_name(sources: Sources) -> None:
    """PYBIND11_MODULE(t0_ext, m) in a source whose setup.py calls the module t0._C."""
    sources.write(files={"t0/csrc/c.c": MODULE.format(answer=42).replace("PyInit__C", "PyInit_t0_ext")})
    sources.add()
    result = sources.build()
    assert result.refused
    failed = {proof.check: proof for proof in result.proofs if proof.verdict is Verdict.FAILED}
    assert "exports PyInit_t0_ext, and Python looks for PyInit__C" in failed[Check.MODULES].reason
    assert "`PYBIND11_MODULE(TORCH_EXTENSION_NAME, m)`" in failed[Check.MODULES].reason
    problem = result.problem
    assert problem is not None
    assert "`PYBIND11_MODULE(TORCH_EXTENSION_NAME, m)`, or give the module in setup.py (`name=`)" in problem.hints[0]


STABLE_SETUP = """\
from setuptools import Extension, setup

macros = [("Py_LIMITED_API", "0x030a0000"), ("TORCH_TARGET_VERSION", "VALUE")]
extension = Extension("t0._C", ["t0/csrc/c.c"], py_limited_api=True, define_macros=macros)
options = {"bdist_wheel": {"py_limited_api": "cp310"}}
setup(name="t0", version="1.0", packages=["t0"], ext_modules=[extension], options=options)
"""


def stable(sources: Sources) -> None:
    """Give the recipe the ABI class `stable`."""
    recipe = sources.folder / "extension.yaml"
    text = re.sub(r"^abi: .*(?:\n[- ].*)*\n", "", recipe.read_text(), flags=re.MULTILINE)
    recipe.write_text(f"{text.rstrip()}\nabi: stable\n")


@pytest.mark.parametrize(
    ("value", "says", "hint"),
    [
        ("0x0210000000000000", "which means torch 2.16, but this build is for torch 2.11", "0x020a000000000000"),
        ("0x0210", "to 0x210, which means no torch", "for torch 2.10, write 0x020a000000000000"),
        ("0x020c000000000000", "means torch 2.12, but this build", "`abi: [{class: stable, torch: '>=2.12'}]`"),
    ],
)
def test_a_target_version_that_no_torch_of_the_plan_has(sources: Sources, value: str, says: str, hint: str) -> None:
    """pytorch 197404: 0x0210 compiles, and the library loads nowhere; said before the compile."""
    sources.write(STABLE_SETUP.replace("VALUE", value))
    sources.add()
    stable(sources)
    result = sources.build()
    assert result.error is not None
    assert says in result.error.sentence
    assert result.error.where == "setup.py:3"
    assert hint in result.error.hints[0]
    assert result.log is not None
    assert "building 't0._C' extension" not in result.log.read_text()


def test_a_target_version_for_newer_releases_of_torch_only(sources: Sources) -> None:
    """The build for torch 2.11 has another ABI class, in which the source need not set the macro."""
    setup = STABLE_SETUP.replace('("TORCH_TARGET_VERSION", "VALUE")]', '("A", "B")]\nif False:\n    macros += [TARGET]')
    sources.write(setup.replace("TARGET", '("TORCH_TARGET_VERSION", "0x020c000000000000")'))
    sources.add()
    sources.good()


@pytest.mark.parametrize(("value", "used"), [("0x020b000000000000", ""), ("unknown", "torch_from_blob")])
def test_a_stable_wheel_begins_with_the_torch_that_it_needs(sources: Sources, value: str, used: str) -> None:
    """deformops 3.0.1: a plan with torch 2.11 only, and a source or a library that needs torch 2.11."""
    code = MODULE.format(answer=42)
    code += f"void {used}(void);\nvoid *call(void) {{ return {used}; }}\n" if used else ""
    sources.write(STABLE_SETUP.replace("VALUE", value), {"t0/csrc/c.c": code})
    sources.add()
    stable(sources)
    result = sources.good()
    assert result.stored is not None
    assert list(read_facts(result.stored.wheel).requires_dist) == ["torch>=2.11"]
    checks = {proof.check: proof for proof in result.proofs}
    assert checks[Check.STABLE].verdict is Verdict.PASSED, checks[Check.STABLE].reason
    assert checks[Check.METADATA].verdict is Verdict.PASSED


def test_tests_of_the_source_are_left_out(sources: Sources, capfd: pytest.CaptureFixture[str]) -> None:
    """Report 14: the recipe leaves out a stray package of a source that the user cannot change."""
    setup = SETUP.replace('packages=["t0"]', 'packages=["t0", "tests"]')
    sources.write(setup, {"tests/__init__.py": ""})
    sources.add()
    contents = next(proof for proof in sources.good().proofs if proof.check is Check.CONTENTS)
    assert "`wheel_exclude: ['tests/*']`" in str(contents.evidence)
    sources.recipe("wheel_exclude: ['tests/*', 'benchmarks/*']")
    assert not any(name.startswith("tests") for name in read_facts(sources.stored().wheel).files)
    assert "`wheel_exclude` matches no file of the wheel: benchmarks/*" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("replaced", "pattern", "wheel", "constant", "errors", "hint"),
    [
        ('"t0-cu" + torch.version.cuda.replace(".", ""), v', ("name", "t0_cu{cuda}"), "t0_cu130-1.0+cu130", "t0",
         ["the name t0_cu130 instead of t0", "the name t0-cu130 instead of t0"], "cu{cuda}`"),
        ('version="1.0.post" + torch.version.cuda.replace(".", "")', ("version", "1.0.post{cuda}"),
         "t0-1.0.post130+cu130", "1.0", ["the version 1.0.post130 instead of 1.0"], "set `version: 1.0.post{cuda}`"),
    ],
    ids=["name", "version"],
)  # fmt: skip
def test_a_name_or_version_with_the_version_of_cuda(
    sources: Sources, replaced: str, pattern: tuple[str, str], wheel: str, constant: str, errors: list[str], hint: str
) -> None:
    """Report 18: `add` writes a pattern, which each build fills in."""
    kind, text = pattern
    sources.write("import torch\n" + SETUP.replace('"t0", v' if kind == "name" else 'version="1.0"', replaced))
    recipe = sources.add().recipe
    assert (recipe.pattern if kind == "name" else recipe.version_pattern) == text
    assert recipe.name == ("t0_cu" if kind == "name" else "t0")
    assert sources.stored().wheel.name.startswith(wheel)
    sources.recipe("", (text, constant))
    error = sources.error()
    assert any(one in error.sentence for one in errors)
    assert hint in error.hints[0]


def packaged_toolkit(sources: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the toolkit come from the index: nvcc, cuda.h, and libraries with version numbers only."""
    monkeypatch.delenv("CUDA_HOME")
    monkeypatch.setattr("builder.wheels.toolchain.machine.USUAL_HOMES", ())
    served = sources.project.index.root / "default"
    extras = ("nvidia_cuda_nvcc", "nvidia_cuda_crt", "nvidia_nvvm", "nvidia_libraries")
    pure_wheel(served, "cuda_toolkit", "13.0.2", requires=["nvidia-cuda-nvcc", "nvidia-libraries"])
    for name in extras[1:3]:
        pure_wheel(served, name, "13.0.88")
    nvcc = "#!/bin/sh\necho 'Cuda compilation tools, release 13.0, V13.0.88'\n"
    header = "CUresult CUDAAPI cuInit(unsigned int Flags);\n"
    files: dict[str, str | bytes] = {"nvidia/cu13/bin/nvcc": nvcc, "nvidia/cu13/include/cuda.h": header}
    pure_wheel(served, extras[0], "13.0.88", files)
    made: dict[str, str | bytes] = {}
    for name in ("cublas", "nvrtc"):
        library = sources.project.root / f"lib{name}.so.13"
        argv = ["gcc", "-shared", "-x", "c", "-", "-o", str(library), f"-Wl,-soname,{library.name}"]
        subprocess.run(argv, input=f"int {name}(void) {{ return 0; }}\n", text=True, check=True)
        made[f"nvidia/cu13/lib/{library.name}"] = library.read_bytes()
    pure_wheel(served, extras[3], "13.0", made)


def test_libraries_of_the_packaged_toolkit(sources: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    """Report 6: `-lcuda` links a stub, and a library of the toolkit has the name that linkers look for."""
    packaged_toolkit(sources, monkeypatch)
    calls = "int cuInit(unsigned), cublas(void), nvrtc(void);\n"
    calls += "int call(void) { return cuInit(0) + cublas() + nvrtc(); }\n"
    sources.write(
        SETUP.replace('c.c"])', 'c.c"], libraries=["cuda", "cublas", "nvrtc"])'),
        {"t0/csrc/c.c": MODULE.format(answer=42) + calls},
    )
    sources.add()
    sources.recipe("requires: [nvidia-libraries]")
    (library,) = read_facts(sources.stored().wheel).libraries
    assert {"libcuda.so.1", "libcublas.so.13", "libnvrtc.so.13"} <= set(library.needed)


def test_a_wheel_that_needs_the_driver(sources: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    """Report 6: a wheel that links libcuda is made on a machine without a driver, which cannot import it."""
    packaged_toolkit(sources, monkeypatch)
    calls = "int cuInit(unsigned);\nint call(void) { return cuInit(0); }\n"
    setup = SETUP.replace('c.c"])', 'c.c"], libraries=["cuda"])')
    sources.write(setup, {"t0/csrc/c.c": MODULE.format(answer=42) + calls})
    sources.add()
    result = sources.good()
    assert not result.refused
    if not find_library("cuda"):
        proofs = {proof.check: proof for proof in result.proofs}
        assert proofs[Check.IMPORT].verdict is Verdict.PASSED
        assert proofs[Check.IMPORT].reason == "t0, t0._C, with a stub in place of libcuda.so.1 of NVIDIA's driver"
        assert proofs[Check.OPS].verdict is Verdict.NOT_RUN
        assert "needs libcuda.so.1 of NVIDIA's driver" in proofs[Check.OPS].reason
        more = "int lost(void);\nint other(void) { return lost(); }\n"
        sources.write(setup, {"t0/csrc/c.c": MODULE.format(answer=42) + calls + more})
        (imported,) = [proof for proof in sources.build().proofs if proof.check is Check.IMPORT]
        assert imported.verdict is Verdict.FAILED
        assert "undefined symbol: lost" in imported.reason


@pytest.mark.parametrize(
    ("header", "package"), [("cuda_profiler_api.h", "cuda-toolkit[profiler]"), ("nvml.h", "cuda-toolkit[nvml]")]
)
def test_a_header_that_the_packaged_toolkit_lacks(
    sources: Sources, monkeypatch: pytest.MonkeyPatch, header: str, package: str
) -> None:
    """Report 6: the failure names the package for `build_requires`."""
    packaged_toolkit(sources, monkeypatch)
    sources.write(files={"t0/csrc/c.c": f"#include <{header}>\n{MODULE.format(answer=42)}"})
    sources.add()
    error = sources.error()
    assert f"{header}: No such file" in error.sentence
    assert f"`{package}`: add it to `build_requires`" in error.hints[0]


def test_an_absolute_path_in_setup_py(sources: Sources) -> None:
    """Report 20: `add` says which paths setuptools may refuse."""
    project = f'{PYPROJECT}[project]\nname = "t0"\nversion = "1.0"\n'
    setup = "import os\nfrom glob import glob\nhere = os.path.dirname(os.path.abspath(__file__))\n"
    setup += SETUP.replace('["t0/csrc/c.c"]', 'glob(os.path.join(here, "t0/csrc/*.c"))')
    sources.write(setup, {"pyproject.toml": project})
    assert any("absolute paths" in each.found for each in sources.draft().findings)
    # setuptools 84 takes a path for a file of its own if the path contains "build": here, and not in a container.
    sources.good()


ABSOLUTE = """\
running build_py
error: Error: setup script specifies an absolute path:

    /project/t0/csrc/c.c

setup() arguments must *always* be /-separated paths relative to the
setup.py directory, *never* absolute paths.
"""


def test_an_absolute_path_in_a_container() -> None:
    """Report 20: the sentence names the path, and the hint the cure."""
    error = first_error(ABSOLUTE.splitlines(), "/project")
    assert error is not None
    assert "absolute path: t0/csrc/c.c" in error.sentence
    (hint,) = hints_for(error, Torch(2, 11, 0), Cuda(13, 0), container=True)
    assert "relative to the folder of setup.py" in hint


def test_two_sources_with_one_stem(sources: Sources) -> None:
    """Report 24: `add` asks to rename one of them."""
    sources.write(SETUP.replace('"t0/csrc/c.c"', '"t0/csrc/c.c", "t0/csrc/c.cpp"'), {"t0/csrc/c.cpp": ""})
    assert any(each.question and "t0/csrc/c.c and t0/csrc/c.cpp" in each.found for each in sources.draft().findings)


ABOVE = """\
from pathlib import Path
from setuptools import Extension, setup

version = Path("../version.txt").read_text().strip()
text = (Path(__file__).parent.parent.parent / "README.md").read_text()
setup(name="t0", version=version, description=text, packages=["t0"],
      ext_modules=[Extension("t0._C", ["../csrc/c.c"], include_dirs=["../../include"])])
"""


def test_files_above_a_git_subfolder(sources: Sources, tmp_path: Path) -> None:
    """setup.py reads a version, a README, headers and C files above the folder that `subdirectory` names."""
    files = {
        "bindings/python/setup.py": ABOVE,
        "bindings/python/pyproject.toml": PYPROJECT,
        "bindings/python/t0/__init__.py": "import torch\nfrom . import _C\n",
        "bindings/version.txt": "1.0\n",
        "bindings/csrc/c.c": '#include "answer.h"\n' + MODULE.format(answer="ANSWER"),
        "include/answer.h": "#define ANSWER 42\n",
        "README.md": "One line\n",
    }
    repository = tmp_path / "repository"
    for name, text in files.items():
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_text(text)
    committed(repository)
    source = f"git+{repository.as_uri()}#subdirectory=bindings/python"
    added = add(sources.project, source)
    assert added.recipe.version == "1.0"
    sources.good()


#: What `import_array()` of NumPy's C API does: it prints why NumPy cannot be imported, and raises another exception.
IMPORT_ARRAY = """{ if (!PyImport_ImportModule("numpy")) {
  PyErr_Print(); PyErr_SetString(PyExc_ImportError, "numpy._core.multiarray failed to import"); return NULL; }
 return PyModule_Create(&module); }"""


def test_a_library_that_needs_numpy(sources: Sources) -> None:
    """torch requires no NumPy, so a cell has it only if METADATA requires it."""
    code = MODULE.format(answer=42).replace("{ return PyModule_Create(&module); }", IMPORT_ARRAY)
    sources.write(files={"t0/csrc/c.c": code})
    sources.add()
    result = sources.build()
    assert result.refused
    (imported,) = [proof for proof in result.proofs if proof.check is Check.IMPORT]
    assert "numpy._core.multiarray failed to import; the cause: ModuleNotFoundError: No module" in imported.reason
    assert any("add `numpy` to `requires` in the recipe" in hint for hint in imported.evidence["hints"])
    sources.recipe("requires: [numpy]")
    result = sources.good()
    assert not result.refused


def test_a_package_that_needs_a_gpu_when_it_is_imported(sources: Sources) -> None:
    """Report 18: the import is not run, so no good wheel is refused."""
    sources.write(files={"t0/__init__.py": "import torch\nfrom . import _C\nassert torch.cuda.is_available()\n"})
    sources.add()
    result = sources.good()
    assert not result.refused
    (imported,) = [proof for proof in result.proofs if proof.check is Check.IMPORT]
    assert imported.verdict is Verdict.NOT_RUN
    assert "needs a GPU when it is imported" in imported.reason


def test_a_link_to_a_folder_of_the_same_repository(sources: Sources, tmp_path: Path) -> None:
    """Report 22: the sources of a subfolder are a link to a folder above it."""
    repository = tmp_path / "repository"
    source = Sources(sources.project, repository / "bindings" / "t0").write()
    (source / "t0" / "csrc").rename(repository / "csrc")
    (source / "t0" / "csrc").symlink_to("../../../csrc")
    committed(repository)
    add(sources.project, f"git+{repository.as_uri()}#subdirectory=bindings/t0")
    result = sources.good()
    assert not result.refused
    with refused(Code.SOURCE_UNSUPPORTED, "t0/csrc/c.c, which is outside of the folder") as raised:
        add(sources.project, str(source))
    assert "#subdirectory=" in str(raised.value.hints)


@pytest.mark.parametrize("made", [False, True])
def test_a_cython_file(sources: Sources, made: bool) -> None:
    """Report 26: neither setup.py nor pyproject.toml names Cython. A source may have what Cython makes."""
    more = {"t0/_C.c": "#include <Python.h>\n"} if made else {}
    sources.write(SETUP.replace("t0/csrc/c.c", "t0/_C.pyx"), {"t0/_C.pyx": "def one(): return 1\n", **more})
    (sources.folder / "t0" / "csrc" / "c.c").unlink()
    assert sources.add().recipe.build_requires == (() if made else ("cython",))


OWN_LIBRARY = """\
import os, subprocess
for name, needs in (("inner", ""), ("own", "-linner")):
    os.makedirs("build/own", exist_ok=True)
    open(f"build/{name}.c", "w").write(f"int {name}(void) {{ return 1; }}\\n")
    words = ["gcc", "-shared", "-fPIC", f"build/{name}.c", "-o", f"build/own/lib{name}.so", "-Wl,--no-as-needed"]
    subprocess.check_call([*words, "-Lbuild/own", *needs.split(), "-Wl,-rpath,$ORIGIN"])
"""


def test_a_library_that_setup_py_builds(sources: Sources) -> None:
    """auditwheel takes the library from the folder of the build, which is deleted before the repair."""
    here = 'libraries=["own"], library_dirs=["build/own"], runtime_library_dirs=[os.path.abspath("build/own")]'
    calls = "int own(void);\nint call(void) { return own(); }\n"
    setup = OWN_LIBRARY + SETUP.replace('["t0/csrc/c.c"]', f'["t0/csrc/c.c"], {here}')
    sources.write(setup, {"t0/csrc/c.c": MODULE.format(answer=42) + calls})
    sources.add()
    result = sources.good()
    assert not result.refused
    assert result.stored is not None
    names = [name.rpartition("/")[2].partition("-")[0] for name in read_facts(result.stored.wheel).files]
    assert {"libown", "libinner"} <= set(names)


def test_an_old_source_for_cmake(sources: Sources, tmp_path: Path) -> None:
    """It names a minimum that CMake 4 refuses, and no folder in which CMake could find its packages."""
    served = sources.project.index.root / "default"
    words = ("-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", tmp_path, "cmake>=4")
    subprocess.run([sys.executable, *words], check=True)
    (wheel,) = tmp_path.glob("cmake-*.whl")
    (served / wheel.name).hardlink_to(wheel)
    pure_wheel(served, "pybind11", "3.0", {"pybind11/share/cmake/pybind11/pybind11Config.cmake": ""})
    lines = "cmake_minimum_required(VERSION 2.8)\nproject(t0 NONE)\nfind_package(pybind11 REQUIRED CONFIG)\n"
    calls = "import subprocess\nsubprocess.check_call(['cmake', '-S', '.', '-B', 'build/cmake'])\n"
    sources.write(calls + SETUP, {"CMakeLists.txt": lines})
    assert sources.add().recipe.build_requires == ("cmake",)
    sources.recipe("", ("build_requires: [cmake]", "build_requires: [cmake, pybind11]"))
    assert not sources.good().refused
