"""Small real environments: stand-ins of torch and its packages on an index of this machine, installed by uv."""

import io
import json
import os
import shlex
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from builder.wheels.toolchain.uv import find_uv
from tests.conftest import BUILDFARM
from tests.fixtures.compiled import library
from tests.unit.loopback import PackageIndex, pure_wheel
from tests.unit.proofs.make import fat_binary
from tests.unit.transcripts import call_in_process, forget_machine

#: The kind of machine code in `fat_binary`.
SASS = 2

TORCH = "2.11.0"


def gpu_source(*archs: int) -> str:
    """Assembler source of a section of GPU code for these architectures, such as 80 and 90."""
    section = fat_binary(*((SASS, arch, 0) for arch in archs))
    return f'.section .nv_fatbin, "a"\n.byte {",".join(map(str, section))}\n'


def torch_libraries(folder: Path, archs: Sequence[int], symbol: str = "torch_symbol") -> dict[str, bytes]:
    """The libraries of a torch, compiled: libtorch_cpu defines `symbol`, libtorch_cuda has GPU code."""
    folder.mkdir(parents=True, exist_ok=True)
    made = {
        "libc10.so": library("libc10.so", "int c10_symbol(void) { return 1; }"),
        "libtorch_cpu.so": library("libtorch_cpu.so", f"int {symbol}(void) {{ return 1; }}"),
        "libtorch_cuda.so": library("libtorch_cuda.so", gpu_source(*archs), "assembler"),
    }
    for name, data in made.items():
        (folder / name).write_bytes(data)
    return made


@dataclass
class Patient:
    """An environment that the tests break, and the index from which cures install."""

    root: Path
    index: PackageIndex
    variables: dict[str, str] = field(default_factory=dict)
    machine: tuple[str, ...] = ()

    @property
    def python(self) -> Path:
        """Its Python."""
        return self.root / "env" / "bin" / "python"

    @property
    def site_packages(self) -> Path:
        """The folder of its packages."""
        return next((self.root / "env" / "lib").glob("python3*/site-packages"))

    def create(self) -> None:
        """Make the empty environment."""
        self._run([str(find_uv()), "venv", "--quiet", "--python", sys.executable, str(self.root / "env")])

    def torch(
        self,
        version: str = TORCH,
        cuda: str = "13.0",
        *,
        archs: Sequence[int] = (75, 80, 86, 90, 100, 120),
        symbol: str = "torch_symbol",
        channel: str = "default",
        requires: Sequence[str] = (),
    ) -> None:
        """Put a torch on the index; `symbol` is what its libtorch_cpu defines."""
        libraries = torch_libraries(self.root / "lib" / f"{version}-{channel.replace('/', '-')}", archs, symbol)
        files: dict[str, str | bytes] = {
            "torch/__init__.py": "raise ImportError('nobody imports this torch')\n",
            "torch/include/torch.h": f"#define TORCH_SYMBOL {symbol}\n",
            "torch/version.py": f"__version__ = {version!r}\ncuda = {cuda or None!r}\n",
            **{f"torch/lib/{name}": data for name, data in libraries.items()},
        }
        pure_wheel(self.index.root / channel, "torch", version, files, requires=requires)

    def has_torch(self, **facts: Any) -> None:
        """Put a torch on the index, and install it."""
        self.torch(**facts)
        self.install("torch")

    def wheel(self, *facts: Any, requires: Sequence[str] = (), channel: str = "default") -> None:
        """Put a wheel on the index; `facts` are of `pure_wheel`: name, version, files."""
        pure_wheel(self.index.root / channel, *facts, requires=requires)

    def install(self, *words: str) -> None:
        """Install from the index with uv; the tests install without requirements what does not belong together."""
        self._run([str(find_uv()), "pip", "install", "--quiet", "--python", str(self.python), *words])

    def uninstall(self, *names: str) -> None:
        """Remove packages with uv."""
        self._run([str(find_uv()), "pip", "uninstall", "--quiet", "--python", str(self.python), *names])

    def gpus(self, *gpus: str, driver: str = "580.95.05") -> None:
        """Describe the machine that is judged."""
        self.machine = ("--driver", driver, *(word for gpu in gpus for word in ("--gpu", gpu)))

    def doctor(self, *before: str) -> tuple[int, dict[str, Any]]:
        """Run the commands in one shell, then `buildfarm doctor --json`; the exit code and the data of doctor.

        Without commands it runs in this process: to start another one takes longer than to judge.
        """
        words = ["doctor", "--json", "--python", str(self.python)]
        words += ["--torch-index", self.index.torch_index, *self.machine]
        if not before:
            forget_machine()
            with patch.dict(os.environ, self._environment, clear=True):
                code, out, err = call_in_process(words)
            assert out, err
            return code, json.loads(out)
        shown = shlex.join([str(BUILDFARM), *words])
        lines = ["set -e", *(f"{{ {line}; }} >&2" for line in before), "set +e", shown]
        ran = subprocess.run(
            ["bash", "-c", "\n".join(lines)], capture_output=True, text=True, env=self._environment, check=False
        )
        assert ran.stdout, ran.stderr
        return ran.returncode, json.loads(ran.stdout)

    def nvcc(self, version: str) -> None:
        """Put an nvcc that only says its version into CUDA_HOME."""
        program = self.site_packages.parents[2] / "cuda" / "bin" / "nvcc"
        program.parent.mkdir(parents=True)
        program.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {version[:4]}, V{version}'\n")
        program.chmod(0o755)
        self.variables["CUDA_HOME"] = str(program.parents[1])

    def diagnose(self, code: str, what: str = "") -> dict[str, Any]:
        """The only fault that doctor finds, which has this code, and these words in its sentence."""
        ended, data = self.doctor()
        faults = [finding for finding in data["findings"] if finding["level"] == "fault"]
        assert (ended, [one["code"] for one in faults]) == (1, [code]), data["findings"]
        assert what in faults[0]["what"]
        found: dict[str, Any] = faults[0]
        return found

    def heal(self, code: str, what: str = "", cure: str = "") -> dict[str, Any]:
        """As `diagnose`; the printed cure, which has these words, is run, and doctor then finds no fault."""
        finding = self.diagnose(code, what)
        assert cure in "\n".join(finding["cure"])
        assert finding["cure"]
        ended, data = self.doctor(*finding["cure"])
        assert (ended, [one for one in data["findings"] if one["level"] == "fault"]) == (0, [])
        return finding

    def remark(self, code: str) -> dict[str, Any]:
        """The note with this code; doctor finds no fault."""
        ended, data = self.doctor()
        (found,) = (finding for finding in data["findings"] if finding["code"] == code)
        assert (ended, found["level"]) == (0, "note")
        note: dict[str, Any] = found
        return note

    @property
    def _environment(self) -> dict[str, str]:
        return {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"} | self.variables

    def _run(self, argv: Sequence[str]) -> None:
        done = subprocess.run(argv, capture_output=True, text=True, env=self._environment, check=False)
        assert done.returncode == 0, done.stderr


#: A build backend without requirements: compiles one library against the torch of the environment.
_BACKEND = '''
import base64, hashlib, os, pathlib, subprocess, sys, sysconfig, zipfile

NAME, VERSION = {name!r}, {version!r}

def get_requires_for_build_wheel(settings=None):
    return []

def build_wheel(folder, settings=None, metadata=None):
    torch = pathlib.Path(sysconfig.get_path("purelib"), "torch")
    archs = [int(arch.replace(".", "")) for arch in os.environ["TORCH_CUDA_ARCH_LIST"].split(";")]
    flags = ["-I", torch / "include", "-L", torch / "lib", "-ltorch_cpu", "-shared", "-fPIC"]
    subprocess.run(["gcc", "-o", "_C.so", "op.c", *["code-%d.s" % arch for arch in archs], *flags], check=True)
    info = "%s-%s.dist-info/" % (NAME, VERSION)
    name = "%s-%s-py3-none-any.whl" % (NAME, VERSION)
    files = {{
        NAME + "/__init__.py": b"", NAME + "/_C.so": pathlib.Path("_C.so").read_bytes(),
        info + "METADATA": ("Metadata-Version: 2.1\\nName: %s\\nVersion: %s\\n" % (NAME, VERSION)).encode(),
        info + "WHEEL": b"Wheel-Version: 1.0\\nRoot-Is-Purelib: false\\nTag: py3-none-any\\n",
    }}
    record = "".join("%s,,\\n" % file for file in [*files, info + "RECORD"])
    with zipfile.ZipFile(pathlib.Path(folder, name), "w") as archive:
        for file, data in [*files.items(), (info + "RECORD", record.encode())]:
            archive.writestr(file, data)
    return name
'''  # fmt: skip


def sdist(folder: Path, name: str, version: str, archs: Sequence[int]) -> Path:
    """Source of an extension that calls the function of torch which torch's header names."""
    files = {
        "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        f'[project]\nname = "{name}"\nversion = "{version}"\n',
        "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        "backend.py": _BACKEND.format(name=name, version=version),
        "op.c": "#include <torch.h>\nint TORCH_SYMBOL(void);\nint op(void) { return TORCH_SYMBOL(); }\n",
        **{f"code-{arch}.s": gpu_source(arch) for arch in archs},
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for file, text in files.items():
            data = text.encode()
            entry = tarfile.TarInfo(f"{name}-{version}/{file}")
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return path


@pytest.fixture
def patient(tmp_path: Path, index: PackageIndex) -> Patient:
    """An empty environment of its own."""
    found = Patient(tmp_path / "patient", index)
    found.create()
    return found
