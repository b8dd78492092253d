"""Torch: whether it is the only one and complete, the linker loads it, and the driver and the GPUs run it."""

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from builder.errors import UsageError
from builder.gate.amounts import join_names
from builder.matrix.axes import Cuda, Gpu
from builder.proofs.cells.driver import driver_floor, driver_runs
from builder.proofs.environment.cures import Cures, Finding, fault, note
from builder.proofs.environment.facts import InstalledEnvironment, InstalledPackage, TorchInstall
from builder.wheelfile.compatibility import codes_for
from builder.wheelfile.fatbin import read_device_code


def no_torch(cures: Cures) -> Finding:
    """The only finding about torch where there is none."""
    cure = cures.fitting_torch()
    return fault(
        "no-torch",
        f"no folder of sys.path has torch ({cures.environment.interpreter.executable})",
        "`import torch` fails with ModuleNotFoundError",
        cure,
        "" if cure else "no torch release in buildfarm's version table fits this Python, driver and GPU",
    )


def check_path(cures: Cures, torch: TorchInstall) -> Iterator[Finding]:
    """No folder of sys.path hides the torch of the environment."""
    interpreter = cures.environment.interpreter
    others = [one for one in cures.environment.torches[1:] if one.folder != torch.folder]
    if not others or torch.folder in interpreter.own:
        return
    listed = "; ".join(f"{one.version} in {one.folder}" for one in (torch, *others))
    why = "Python imports the first; packages in the other folders were installed for another torch"
    entries = cures.environment.variables.get("PYTHONPATH", "").split(":")
    cure: tuple[str, ...] = ()
    advice = f"remove {torch.folder} from sys.path: a .pth file in {interpreter.own[0]} may name it"
    if torch.folder == interpreter.user_site:
        cure, advice = ("export PYTHONNOUSERSITE=1",), "put the line into the file that starts your shell or service"
    elif str(torch.folder) in [entry.rstrip("/") for entry in entries]:
        rest = ":".join(entry for entry in entries if entry and entry.rstrip("/") != str(torch.folder))
        cure = (f"export PYTHONPATH={rest}" if rest else "unset PYTHONPATH",)
        advice = "remove the folder from the file that sets PYTHONPATH"
    what = f"the torch of the environment is hidden by another one on sys.path: {listed}"
    yield fault("two-torches", what, why, cure, advice)


def check_records(cures: Cures, torch: TorchInstall) -> Iterator[Finding]:
    """The folder has one dist-info folder of torch: an interrupted update leaves a second."""
    found = [one for one in cures.environment.packages if one.name == "torch" and one.folder == torch.folder]
    if len(found) < 2:
        return
    versions = ", ".join(sorted((package.version for package in found), key=Version))
    requirement = f"torch=={torch.package.version}" if torch.package else "torch"
    yield fault(
        "two-records-of-torch",
        f"{torch.folder} has metadata of torch {versions}, but only the files of {torch.version}",
        "an installation was interrupted; installers read the wrong version and do not replace the files",
        (cures.remove("torch"), cures.remove("torch"), cures.install(requirement, index=cures.index_of(torch))),
    )


def check_installers(cures: Cures, torch: TorchInstall) -> Iterator[Finding]:
    """A torch of conda and a torch of pip in one environment overwrite each other's files."""
    conda = cures.environment.conda
    names = [name for name in ("pytorch", "libtorch") if name in conda]
    if not names or torch.package is None or torch.package.installer == "conda":
        return
    installer = torch.package.installer or "pip"
    yield fault(
        "torch-of-conda-and-pip",
        f"conda installed {names[0]} {conda[names[0]]}, and {installer} installed torch {torch.package.version}",
        "both have files of the same names, and the linker may load those of the other torch",
        (
            f"conda remove --yes --force --prefix {cures.environment.interpreter.prefix} {' '.join(names)}",
            cures.restore([torch.package], cures.index_of(torch)),
        ),
        "or remove the torch of pip, and install PyTorch by conda only",
    )


def check_requirements(cures: Cures, torch: TorchInstall) -> Iterator[Finding]:
    """Every package of CUDA that torch requires is installed."""
    required = _cuda_packages(cures.environment, torch.package) if torch.package else ()
    if missing := [one for one in required if canonicalize_name(one.name) not in cures.environment.visible]:
        names = ", ".join(one.name for one in missing)
        texts = (str(one).partition(";")[0].strip() for one in missing)
        yield fault(
            "missing-requirement-of-torch",
            f"torch {torch.version} requires {names}, which the environment does not have",
            "`import torch` fails with `cannot open shared object file`",
            (cures.install(*texts, index=cures.index_of(torch)),),
        )


def _cuda_packages(
    environment: InstalledEnvironment, package: InstalledPackage, extras: Iterable[str] = ()
) -> Iterator[Requirement]:
    """The packages of CUDA that a package requires; those of `cuda-toolkit[cublas]` are requirements of its extras."""
    for one in package.requirements(environment.interpreter.markers, extras):
        name = canonicalize_name(one.name)
        if name.startswith(("nvidia-", "cuda-", "triton")):
            yield one
            if one.extras and (found := environment.visible.get(name)):
                yield from _cuda_packages(environment, found, one.extras)


def check_files(cures: Cures, torch: TorchInstall) -> Iterator[Finding]:
    """Torch, and the packages of CUDA that it requires, have the libraries that their RECORD lists."""
    if torch.package is None:
        return
    visible = cures.environment.visible
    names = dict.fromkeys(canonicalize_name(one.name) for one in _cuda_packages(cures.environment, torch.package))
    packages = [torch.package, *(visible[name] for name in names if name in visible)]
    if damaged := [package for package in packages if package.lost_libraries]:
        files = [path.rpartition("/")[2] for package in damaged for path in package.lost_libraries]
        listed = ", ".join(map(str, damaged))
        yield fault(
            "missing-libraries",
            f"libraries of {listed} were deleted: {join_names(files)}",
            "`import torch`, or an op that needs them, fails; an installer deletes them together with another package"
            " that has files of the same names",
            (cures.restore(damaged, cures.index_of(torch)),),
        )


def check_backends(cures: Cures, torch: TorchInstall) -> Iterator[Finding]:
    """The functions that `import torch` calls exist. torch calls the entry points of `torch.backends` since 2.5."""
    environment, variable = cures.environment, "TORCH_DEVICE_BACKEND_AUTOLOAD"
    since = torch.base is not None and (torch.base.major, torch.base.minor) >= (2, 5)
    if not since or environment.variables.get(variable) == "0":
        return
    for package in environment.visible.values():
        for value in package.backends:
            if lacking := _lacking(environment, package, value):
                yield fault(
                    "broken-backend-of-torch",
                    f"{package} lets `import torch` call {value}, and {lacking}",
                    "`import torch` fails with `Failed to load the backend extension`",
                    (cures.remove(package.name),),
                    f"`export {variable}=0` lets torch ignore such packages",
                )


def _lacking(environment: InstalledEnvironment, package: InstalledPackage, value: str) -> str:
    """What does not exist of an entry point `module:function`; empty if it exists, or if its file is not source."""
    module, _, name = (part.strip() for part in value.partition(":"))
    places = [folder.joinpath(*module.split(".")) for folder in environment.interpreter.path]
    files = [file for place in places for file in (place / "__init__.py", place.with_name(f"{place.name}.py"))]
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        known = package.source or any(one.is_dir() or [*one.parent.glob(f"{one.name}.*")] for one in places)
        return "" if known else f"there is no module {module}"
    text, first = file.read_text("utf-8", errors="replace"), name.partition(".")[0]
    found = not first or re.search(rf"\b{re.escape(first)}\b|import \*|\b__getattr__\b", text)
    return "" if found else f"{file} has no {first}"


def check_leftovers(cures: Cures, _: TorchInstall) -> Iterator[Finding]:
    """pip renames files while it uninstalls, and restores or deletes them at the end."""
    if left := cures.environment.leftovers:
        yield note(
            "leftovers-of-pip",
            f"an interrupted uninstallation left {', '.join(path.name for path in left)} in {left[0].parent}",
            "pip ignores names that begin with `~`, and warns of them; they take space",
            (shlex.join(["rm", "-r", *map(str, left)]),),
        )


def check_uv(cures: Cures, _: TorchInstall) -> Iterator[Finding]:
    """No setting of uv chooses the index of torch."""
    variable = "UV_TORCH_BACKEND"
    value = cures.environment.variables.get(variable)
    files = ", ".join(map(str, cures.environment.torch_backends))
    if value or files:
        yield note(
            "torch-backend-of-uv",
            f"{f'{variable}={value}' if value else f'`torch-backend` in {files}'} chooses the index of torch for uv",
            "`uv pip install` may install another torch than its command and the printed commands name",
            (f"unset {variable}",) if value else (),
            f"delete `torch-backend` from {files}" if files else "",
        )


def check_library_path(cures: Cures, torch: TorchInstall) -> Iterator[Finding]:
    """No folder of LD_LIBRARY_PATH has a library with the name of one of torch or of its NVIDIA packages.

    The linker takes it for a library with DT_RUNPATH, and for one that is opened by name. One with DT_RPATH, such as
    torch's own, searches its own folders first: so this is a note.
    """
    folders = [Path(entry) for entry in cures.environment.variables.get("LD_LIBRARY_PATH", "").split(":") if entry]
    own = [*torch.folder.glob("nvidia/**/lib/*.so*"), *torch.libraries.glob("*.so*")] if folders else []
    found = {
        folder / file.name
        for folder in folders
        for file in own
        if (folder / file.name).is_file() and not (folder / file.name).samefile(file)
    }
    if found:
        guilty = {path.parent for path in found}
        rest = ":".join(str(folder) for folder in folders if folder not in guilty)
        yield note(
            "hidden-libraries",
            f"LD_LIBRARY_PATH names {', '.join(map(str, sorted(guilty)))}, whose"
            f" {join_names(sorted(path.name for path in found))} the linker may load instead of torch's",
            "versions that do not belong together fail with `undefined symbol` or `version mismatch`, or are slow",
            (f"export LD_LIBRARY_PATH={shlex.quote(rest)}" if rest else "unset LD_LIBRARY_PATH",),
            "change the file that sets the variable, such as ~/.bashrc",
        )


def check_gpus(cures: Cures, torch: TorchInstall) -> Iterator[Finding]:
    """The driver runs torch's CUDA, and torch has code for each GPU."""
    environment, machine, cuda = cures.environment, cures.environment.machine, torch.cuda
    if cuda is None:
        if machine.gpus:
            what = f"torch {torch.version} is a CPU build, which cannot use the {machine.gpus[0].name}"
            yield note("torch-without-cuda", what, "`torch.cuda.is_available()` is False", *_other_torch(cures))
        return
    if machine.driver and not driver_runs(machine.driver, cuda, cures.compat):
        floor, (cure, advice) = driver_floor(cuda, cures.compat), _other_torch(cures)
        yield fault(
            "driver-too-old",
            f"NVIDIA's driver {machine.driver} is too old for torch {torch.version}: CUDA {cuda} needs driver {floor}"
            " or newer",
            "torch finds no GPU: `The NVIDIA driver on your system is too old`",
            cure,
            f"driver {floor} or newer runs the installed torch" if cure else advice,
        )
    codes = _torch_code(cures, torch)
    for gpu in dict.fromkeys(machine.gpus):
        if codes and not codes_for(codes, gpu.arch):
            yield fault(
                "gpu-unknown-to-torch",
                f"torch {torch.version} has no code for the {_named([gpu])}, only for {', '.join(codes)}",
                "the first kernel fails with `no kernel image is available for execution on the device`",
                *_other_torch(cures),
            )
        elif not cures.nvrtc_knows(_nvrtc_cuda(environment, cuda), gpu.arch):
            yield fault(
                "gpu-unknown-to-nvrtc",
                f"the runtime compiler of CUDA {cuda} in torch {torch.version} does not know the {_named([gpu])}",
                "some ops fail with `nvrtc: error: invalid value for --gpu-architecture (-arch)`",
                *_other_torch(cures),
            )


def _other_torch(cures: Cures) -> tuple[tuple[str, ...], str]:
    """The command that installs a torch for this Python, driver and these GPUs, or why there is none."""
    if cure := cures.fitting_torch():
        return cure, ""
    machine = cures.environment.machine
    where = " and ".join(filter(None, [machine.driver and f"driver {machine.driver}", _named(machine.gpus)]))
    return (), (
        f"no torch in buildfarm's version table is for Python {cures.environment.interpreter.python} and {where}:"
        " update the driver or Python, or use another GPU"
    )


def _named(gpus: Sequence[Gpu]) -> str:
    return ", ".join(f"{gpu.name} ({gpu.arch.sm})" for gpu in gpus)


def _torch_code(cures: Cures, torch: TorchInstall) -> tuple[str, ...]:
    """The machine code in torch's libraries (`sm_90`); from compat.yaml if the libraries cannot be read."""
    codes: dict[str, int] = {}
    for library in sorted(torch.libraries.glob("libtorch_cuda*.so")):
        try:
            codes.update(read_device_code(library)[0])
        except UsageError:
            continue
    if codes:
        return tuple(sorted(codes, key=lambda code: (code.startswith("compute"), len(code), code)))
    if torch.release is None or torch.cuda is None or torch.release not in cures.compat.torches:
        return ()
    return tuple(a.sm for a in cures.compat.official_archs(torch.release, torch.cuda, cures.environment.platform))


def _nvrtc_cuda(environment: InstalledEnvironment, cuda: Cuda) -> Cuda:
    """The CUDA of the NVRTC that torch loads: that of its package, else torch's."""
    for name in (f"nvidia-cuda-nvrtc-cu{cuda.major}", "nvidia-cuda-nvrtc"):
        if package := environment.visible.get(name):
            major, minor, *_ = [*package.version.split("."), "", ""]
            if major.isdecimal() and minor.isdecimal() and int(major) == cuda.major:
                return Cuda(int(major), int(minor))
    return cuda
