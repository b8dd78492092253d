"""Copies a CUDA toolkit into the root directory of an image, with the layout of NVIDIA's `nvidia/cuda:…-devel`.

    cuda_toolkit.py debian APT_CONF SUITE PACKAGE… -- ROOT CHANGES WORK
    cuda_toolkit.py index VERSION -- ROOT CHANGES WORK

make-base calls this script in an environment with python-xz. ROOT is the root directory of the image, CHANGES a file
for the image's settings (one Dockerfile line each), WORK an empty directory. Of large libraries such as cuBLAS only
NVIDIA's stubs are copied: builds can link them, but programs cannot run with them. The packages of the package index
have no stubs, so builds in that image cannot link these libraries.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

#: Maps Debian's paths to those of NVIDIA's images. The first matching pattern decides; None skips a file.
#: `usr/bin/nvcc` is a shell script that selects the compiler that Debian pairs with nvcc; it is not needed.
_LIBRARIES = "usr/lib/x86_64-linux-gnu"
_FROM_DEBIAN: tuple[tuple[str, str | None], ...] = (
    ("usr/include/cuda-gdb/*", None),
    ("usr/include/*", "include"),
    ("usr/bin/nvcc", None),
    ("usr/bin/TreeLauncher*", None),
    ("usr/bin/cuda-memcheck", None),
    ("usr/bin/compute-sanitizer", None),
    ("usr/bin/*", "bin"),
    ("usr/lib/nvidia-cuda-toolkit/bin/nvcc", "bin"),
    ("usr/lib/nvidia-cuda-toolkit/bin/cicc", "nvvm/bin"),
    ("usr/lib/nvidia-cuda-toolkit/bin/crt/*", "bin/crt"),
    ("usr/lib/nvidia-cuda-toolkit/libdevice/*", "nvvm/libdevice"),
    (f"{_LIBRARIES}/stubs/*", "lib64/stubs"),
    *((f"{_LIBRARIES}/lib{name}", "lib64") for name in ("cudart*", "cudadevrt.a", "culibos.a", "nvToolsExt*")),
)

#: Paths in the wheels, below `nvidia/cu13/`.
_FROM_INDEX: tuple[tuple[str, str | None], ...] = (
    ("include/*", "include"),
    ("bin/*", "bin"),
    ("nvvm/*", "nvvm"),
    *((f"lib/lib{name}", "lib64") for name in ("cudart*", "cudadevrt.a", "culibos.a", "nvtx*")),
    ("lib/stubs/*", "lib64/stubs"),
)

#: nvcc reads this file in its own directory. Debian's version has Debian's paths; this one has relative paths, as
#: NVIDIA's. The headers are system headers, as in /usr/include: otherwise CUDA 12.4 rejects `cospi` of glibc 2.41.
_PROFILE = """\
TOP = $(_HERE_)/..
NVVMIR_LIBRARY_DIR = $(TOP)/nvvm/libdevice
PATH += $(TOP)/nvvm/bin:$(_HERE_):
INCLUDES += "-isystem" "$(TOP)/$(_TARGET_DIR_)/include" $(_SPACE_)
LIBRARIES =+ $(_SPACE_) "-L$(TOP)/$(_TARGET_DIR_)/lib$(_TARGET_SIZE_)/stubs"
LIBRARIES =+ $(_SPACE_) "-L$(TOP)/$(_TARGET_DIR_)/lib$(_TARGET_SIZE_)"
"""

#: Libraries of the driver. A build can link their stubs only if it names the directory of the stubs.
_DRIVER = ("libcuda.so", "libnvidia-ml.so")

#: Files that every complete toolkit has.
_NEEDED = (
    *("bin/nvcc", "bin/nvcc.profile", "bin/ptxas", "nvvm/bin/cicc", "include/cuda_fp16.h", "include/cusolverDn.h"),
    *("lib64/libcudart.so", "lib64/libcudart_static.a"),
)


class Toolkit:
    """The directory of a toolkit in an image."""

    def __init__(self, root: Path, version: str) -> None:
        """`root` is the root directory of the image; `version` is the toolkit's version, `12.4.1`."""
        self._root = root
        self._version = version
        series = ".".join(version.split(".")[:2])
        self.folder = root / f"usr/local/cuda-{series}"
        target = self.folder / "targets/x86_64-linux"
        (target / "include").mkdir(parents=True)
        (target / "lib/stubs").mkdir(parents=True)
        (self.folder / "include").symlink_to("targets/x86_64-linux/include")
        (self.folder / "lib64").symlink_to("targets/x86_64-linux/lib")
        (root / "usr/local/cuda").symlink_to(f"cuda-{series}")

    def place(self, path: str, rules: tuple[tuple[str, str | None], ...]) -> Path | None:
        """The target path of a package's file, with its directory created; None for a skipped file."""
        for pattern, folder in rules:
            if fnmatch.fnmatchcase(path, pattern):
                if folder is None:
                    return None
                below = PurePosixPath(path).relative_to(pattern.rpartition("/")[0])
                place = self.folder / folder / below
                place.parent.mkdir(parents=True, exist_ok=True)
                return place
        return None

    def finish(self, changes: Path, origin: str, compiler: str) -> None:
        """Write links, labels and environment variables. Raises SystemExit when a file is missing."""
        libraries = self.folder / "lib64"
        for stub in sorted((libraries / "stubs").iterdir()):
            if stub.name not in _DRIVER and not (libraries / stub.name).exists():
                (libraries / stub.name).symlink_to(f"stubs/{stub.name}")
        record = {"cuda": {"name": "CUDA SDK", "version": self._version}, "cuda_nvcc": {"version": compiler}}
        (self.folder / "version.json").write_text(json.dumps(record, indent=1))
        for part in _NEEDED:
            if not (self.folder / part).exists():
                raise SystemExit(f"make-base: the packages do not contain {part}")
        system = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        changes.write_text(
            f'LABEL buildfarm.stand-in="CUDA {compiler} from {origin}; not NVIDIA\'s image"\n'
            f"ENV CUDA_VERSION={self._version} PATH=/usr/local/nvidia/bin:/usr/local/cuda/bin:{system}"
            " LIBRARY_PATH=/usr/local/cuda/lib64/stubs"
            " NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility\n"
            'CMD ["/bin/bash"]\n'
        )


def _members(package: Path, work: Path) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    """A Debian package's files. Only the needed blocks are unpacked, because static libraries have gigabytes."""
    import xz  # type: ignore[import-not-found]  # make-base installs it

    inner = work / "data.tar.xz"
    with inner.open("wb") as stream:
        subprocess.run(["ar", "p", package, "data.tar.xz"], stdout=stream, check=True)
    with xz.open(inner) as stream, tarfile.open(fileobj=stream, mode="r:") as archive:
        for member in archive:
            yield archive, member
    inner.unlink()


def from_debian(arguments: list[str], root: Path, changes: Path, work: Path) -> None:
    """Copy the toolkit from packages of a Debian release."""
    apt, suite, *packages = arguments
    environment = {**os.environ, "APT_CONFIG": apt}
    subprocess.run(["apt-get", "-qq", "download", *packages], cwd=work, env=environment, check=True)
    # 12.4.131~12.4.1-2: nvcc's own version, then the toolkit's
    named = next(work.glob("nvidia-cuda-toolkit_*.deb")).name
    found = re.match(r"[^_]+_([\d.]+)(?:~|%7e)([\d.]+)", named)
    if not found:
        raise SystemExit(f"make-base: {named} has no CUDA version in its name")
    compiler, version = found.groups()
    toolkit = Toolkit(root, version)
    for package in sorted(work.glob("*.deb")):
        for archive, member in _members(package, work):
            path = member.name.removeprefix("./")
            place = None if member.isdir() else toolkit.place(path, _FROM_DEBIAN)
            if place is None or path.endswith("/nvcc.profile"):
                continue
            if member.issym():
                place.symlink_to(PurePosixPath(member.linkname).name)
            elif content := archive.extractfile(member):
                place.write_bytes(content.read())
                place.chmod(member.mode)
        package.unlink()
    (toolkit.folder / "bin/nvcc.profile").write_text(_PROFILE)
    toolkit.finish(changes, f"Debian {suite}'s packages", compiler)


def from_index(arguments: list[str], root: Path, changes: Path, work: Path) -> None:
    """Copy the toolkit from the Python package index, with all parts from one minor version, as buildfarm pins them."""
    (series,) = arguments
    parts = "nvcc,cccl,cudart,cublas,cufft,curand,cusolver,cusparse,nvrtc,nvtx,nvjitlink"
    single = [f"nvidia-{name}=={series}.*" for name in ("cuda-crt", "nvvm")]
    wanted = [f"cuda-toolkit[{parts}]=={series}.*", *single]
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-cache-dir"]
    subprocess.run([*pip, "--only-binary", ":all:", "--dest", str(work), *wanted], check=True)
    versions = {p.name.split("-")[0]: p.name.split("-")[1] for p in work.glob("*.whl")}
    toolkit = Toolkit(root, ".".join(versions["cuda_toolkit"].split(".")[:3]))
    prefix = f"nvidia/cu{series.split('.')[0]}/"
    for wheel in sorted(work.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.infolist():
                path = member.filename.removeprefix(prefix)
                if path == member.filename or member.is_dir() or not (place := toolkit.place(path, _FROM_INDEX)):
                    continue
                place.write_bytes(archive.read(member))
                # In a wheel, a program may be executable only by its owner.
                place.chmod(0o755 if member.external_attr >> 16 & 0o100 else 0o644)
        wheel.unlink()
    cudart = next((toolkit.folder / "lib64").glob("libcudart.so.*"))
    (toolkit.folder / "lib64/libcudart.so").symlink_to(cudart.name)
    toolkit.finish(changes, "the Python package index", versions["nvidia_cuda_nvcc"])


def main() -> None:
    """Read the arguments and copy the toolkit that they name."""
    source, *arguments = sys.argv[1:]
    at = arguments.index("--")
    root, changes, work = (Path(path) for path in arguments[at + 1 :])
    try:
        {"debian": from_debian, "index": from_index}[source](arguments[:at], root, changes, work)
    except subprocess.CalledProcessError as problem:
        raise SystemExit(f"make-base: `{' '.join(map(str, problem.cmd))}` failed") from None


if __name__ == "__main__":
    main()
