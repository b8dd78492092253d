"""Environment variables of a build: what every executor sets, what the user's shell adds, how compiler flags join."""

import re
from collections.abc import Mapping
from pathlib import Path

from builder.matrix.compat import Compat
from builder.wheels.job import CompileJob

#: 1980-01-01, the oldest date that a zip can hold, so that no file contains a build time.
EPOCH = "315532800"

#: nvcc's options for the architectures of the plan, and whether they replace those that the source names; launch.sh
#: reads both.
ARCHITECTURES, REPLACE = "BUILDFARM_NVCC_ARCHITECTURES", "BUILDFARM_NVCC_REPLACE"

#: The only variables of the user's shell that reach a local build: user, language, network and caches. Any other
#: variable (CPATH, LIBRARY_PATH, a flag that some setup.py reads) could change what is compiled, and the build's digest
#: does not cover it.
_FROM_SHELL = re.compile(
    r"HOME|USER|LOGNAME|PATH|TMPDIR|TZ|LANG|LC_.+|XDG_CACHE_HOME|(?:UV|PIP)_.+|(?i:.+_proxy)"
    r"|SCCACHE_(?:DIR|CACHE_SIZE|NO_CACHE|RECACHE|LOG)"
    r"|SSL_CERT_FILE|SSL_CERT_DIR|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE"
)

#: Variables with compiler flags, which are appended instead of replaced.
_FLAGS = re.compile(r"[A-Z]*FLAGS|NVCC_(?:PRE|AP)PEND_FLAGS")


def build_variables(job: CompileJob) -> dict[str, str]:
    """What every executor sets: architectures, CUDA without a GPU, parallelism, no dates, no debug information."""
    compat, build = Compat.load(), job.build
    # Without those that torch refuses, which only `override_architectures` allows.
    listed = [arch for arch in build.archs if not compat.why_not_listed(build.torch, arch)]
    listed = listed or list(compat.official_archs(build.torch, build.cuda, build.platform))
    codes = []
    for arch in build.archs:  # as torch writes nvcc's options
        number = f"{arch.number}{arch.suffix}"
        kinds = ("sm", "compute") if arch.ptx else ("sm",)
        codes += [f"-gencode=arch=compute_{number},code={kind}_{number}" for kind in kinds]
    return {
        ARCHITECTURES: " ".join(codes),
        **({REPLACE: "1"} if job.recipe.override_architectures else {}),
        "TORCH_CUDA_ARCH_LIST": ";".join(map(str, listed)),
        # For CMake without torch's CMake files, which would compile for nvcc's default architecture only.
        "CUDAARCHS": ";".join(f"{arch.number}{arch.suffix}{'' if arch.ptx else '-real'}" for arch in job.build.archs),
        "FORCE_CUDA": "1",
        "MAX_JOBS": str(job.jobs),
        "CMAKE_BUILD_PARALLEL_LEVEL": str(job.jobs),
        # CMake 4 refuses a source that names a minimum before 3.5, unless this variable names a newer one.
        "CMAKE_POLICY_VERSION_MINIMUM": "3.5",
        "SOURCE_DATE_EPOCH": EPOCH,
        # A source without .git, as buildfarm prepares it, has no version for setuptools-scm, hatch-vcs and others.
        "SETUPTOOLS_SCM_PRETEND_VERSION": job.build.version,
        "PBR_VERSION": job.build.version,
        "POETRY_DYNAMIC_VERSIONING_BYPASS": job.build.version,
        # nvcc puts its intermediate files next to the object file. In the folder for temporary files their names would
        # hold nvcc's process id, and an object file contains the name of its source.
        "NVCC_PREPEND_FLAGS": "-objtemp",
        # Python's own flags contain -g, and setuptools passes them on: more than half of the time of a compile with
        # torch's headers, for debug information that no released wheel has. A -g of the recipe or source still wins.
        "CPPFLAGS": "-g0",
        "PYTHONNOUSERSITE": "1",
        "LC_ALL": "C.UTF-8",  # `compile_failure` reads English messages
        "PYTHONHASHSEED": "0",
        # torch's table is wrong for 12.8 and 12.9 and has no row above 13.0; buildfarm checks the compiler itself.
        "TORCH_DONT_CHECK_COMPILER_ABI": "1",
        # Since 2.15, torch puts a ccache or sccache of PATH before each compiler. The launchers call sccache too, and
        # one sccache would then wait for the other. ccache is no part of the toolchain.
        "TORCH_NO_COMPILER_WRAPPER": "1",
    }


def shell_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables of a shell that a local build gets."""
    return {name: value for name, value in variables.items() if _FROM_SHELL.fullmatch(name)}


def prefix_map_flags(folders: Mapping[Path, str], *, stores: Mapping[Path, str]) -> dict[str, str]:
    """Variables whose flags make a compiler write other names for these folders.

    `stores` are folders whose paths differ between stores. sccache hashes the flags of a compiler, but not those of
    the preprocessor. So their maps go to the preprocessor, and all stores find the same objects. gcc passes them on to
    the compiler proper, and sccache hashes the preprocessed text, which has each path that a map can change.

    The flags are in CPPFLAGS: setuptools appends it to Python's own flags, where CFLAGS would replace them
    (setuptools 81). CMake reads neither.
    """
    maps, unhashed = _prefix_maps(folders), _prefix_maps(stores)
    words = [*maps, *(word for each in unhashed for word in ("-Xpreprocessor", each))]
    return {
        "CPPFLAGS": " ".join([*maps, *(f"-Wp,{each}" for each in unhashed)]),
        "NVCC_PREPEND_FLAGS": " ".join(f"-Xcompiler {word}" for word in words),
    }


def _prefix_maps(folders: Mapping[Path, str]) -> list[str]:
    # A comma would end nvcc's -Xcompiler, and an equals sign the folder.
    return [
        f"-ffile-prefix-map={folder}={name}" for folder, name in folders.items() if not set(",=") & set(str(folder))
    ]


def merge_variables(variables: Mapping[str, str], more: Mapping[str, str]) -> dict[str, str]:
    """Both; `more` wins, but its compiler flags are appended to those of `variables`."""
    flags = {
        name: f"{variables[name]} {text}".strip()
        for name, text in more.items()
        if name in variables and _FLAGS.fullmatch(name)
    }
    return {**variables, **more, **flags}
