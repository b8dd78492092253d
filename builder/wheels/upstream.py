"""Facts of a torch release or a CUDA toolkit, read from its packages on the package index by range requests.

No code of torch is executed. Of a toolkit, `ptxas` is asked what it knows.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote
from zipfile import ZipFile

import requests
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import Version
from remotezip import PartialBuffer, RemoteFetcher, RemoteZip, RemoteZipError
from requests.adapters import HTTPAdapter

from builder.errors import Code, MissingToolError, UsageError
from builder.images.network import ca_bundle
from builder.matrix.axes import Arch, Cuda, Platform, Python, Torch
from builder.matrix.compat import Compat
from builder.untrusted import split_url, without_credentials
from builder.wheelfile.archive import DAMAGE
from builder.wheels.build_scripts.new_environment import stated
from builder.wheels.sources.index import Location, download, index_login, locate
from builder.wheels.toolchain.uv import compile_captured, is_offline

_T = TypeVar("_T")
#: Minor versions of Python 3 that a release is looked up for, until one is old enough for no wheel to be left out.
_MINORS = range(7, 24)
#: Bytes of a member: torch's library has 34 MiB, ptxas 40.
_MAX_MEMBER = 1 << 28
_TIMEOUT = 60.0  # seconds without a byte
_VERSION, _EXTENSION, _LIBRARY = "torch/version.py", "torch/utils/cpp_extension.py", "torch/lib/libtorch_python.so"
_HEADERS = "torch/include/"
_HEADER = f"{_HEADERS}ATen/ATen.h"
#: Projects with a release for each torch.
_COMPANIONS = ("torchvision", "torchaudio")


class TorchWheel(NamedTuple):
    """A wheel of torch for Linux on an index."""

    torch: Torch
    python: Python
    machine: str
    file: Location


@dataclass
class Facts:
    """A row of facts.yaml, as plain text, lists and dicts; `builder/matrix/compat_table.py` says what its keys mean."""

    row: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add(self, fact: str, value: object, of: Location, member: str) -> None:
        """Keep a fact with its source: the file, its sha256, and the member that states the fact."""
        self.row[fact] = _plain(value)
        self.sources.setdefault(of.name, {"sha256": of.sha256, "read": {}})["read"][fact] = member

    def to_row(self) -> dict[str, Any]:
        """The facts, then their sources."""
        return {**self.row, "sources": self.sources}


def _plain(value: object) -> Any:  # noqa: ANN401 - what YAML has
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    return [str(one) for one in value] if isinstance(value, list) else str(value)


def torch_facts(text: str) -> tuple[Torch, Facts]:
    """Read the facts of a release, or of the newest release of a series, from the package index.

    Raises UsageError: the index has no such release; MissingToolError: it cannot be reached, or a file does not state a
    fact, or two statements contradict each other.
    """
    torch, wheels = torch_wheels(f"torch=={text}" if text.count(".") > 1 else f"torch=={text}.*")
    facts = Facts({"python": _plain(sorted({wheel.python for wheel in wheels})), "variants": {}})
    if _read_variant(torch, wheels, facts) is None:
        raise _unread(f"torch {torch}", "no wheel of the package index was built with CUDA")
    facts.row["companions"] = {name: version for name in _COMPANIONS if (version := _companion(name, torch))}
    return torch, facts


def add_variant(torch: Torch, cuda: Cuda, torch_index: str, facts: Facts) -> None:
    """Read the variant of a release for another CUDA, if PyTorch's own index has it.

    `torch_index` is its address, with `{variant}`. Raises MissingToolError as `torch_facts`.
    """
    with suppress(UsageError):  # the index has no such variant
        _, wheels = torch_wheels(f"torch=={torch}+{cuda.variant}", torch_index.replace("{variant}", cuda.variant))
        _read_variant(torch, wheels, facts)


def newest_torch(specifier: str) -> Torch:
    """The newest release of the package index that a version specifier admits, for any Python that buildfarm knows.

    uv names the newest one for a Python. Raises as `torch_facts`.
    """
    found, problems = list[Torch](), list[UsageError]()
    for python in (one for one in Compat.load().pythons if not one.free_threaded):
        try:
            files = locate(f"torch{specifier}", "wheel", f"--python-version={python}")
        except UsageError as error:  # no release for this Python
            problems.append(error)
        else:
            found += [Torch.parse(Version(file.version).base_version) for file in files[:1]]
    if not found:
        raise problems[-1]
    return max(found)


def torch_wheels(wanted: str, *index: str) -> tuple[Torch, list[TorchWheel]]:
    """The newest release that a requirement of torch admits, and its wheels for Linux.

    uv lists none for a Python older than the one that it resolves for. Raises as `torch_facts`.
    """
    for minor in _MINORS:
        try:
            files = locate(wanted, "wheel", "--universal", f"--python-version=3.{minor}", index=index)
        except UsageError as error:
            if "Python" in error.sentence and minor != _MINORS[-1]:
                continue  # the release has no wheel for so old a Python
            raise
        wheels = [wheel for file in files for wheel in _parsed(file)]
        if wheels:
            return wheels[0].torch, wheels
    raise _unread(wanted, "the package index has no wheel for Linux")


def torch_headers(specifier: str, folder: Path) -> tuple[Torch, list[Python]]:
    """Extract the headers of the newest release that a version specifier admits, to `torch/include` in `folder`.

    Returns the release and the Pythons that it has wheels for, newest first. Raises as `torch_facts`.
    """
    torch, wheels = torch_wheels(f"torch=={newest_torch(specifier)}")
    ours = [one for one in wheels if one.machine == os.uname().machine and not one.python.free_threaded]
    if not ours:
        raise _unread(f"torch {torch}", "the package index has no wheel for this machine")
    ours.sort(key=lambda one: one.python, reverse=True)
    with _opened(ours[0].file, fetcher=_Blocks) as wheel:
        members = [one for one in wheel.archive.infolist() if one.filename.startswith(_HEADERS)]
        if not members or sum(one.file_size for one in members) > _MAX_MEMBER:
            raise wheel.unread(_HEADERS, "it has no headers, or too many")
        wheel.archive.extractall(folder, members)
    return torch, [one.python for one in ours]


class _Blocks:
    """Fetches a file in large parts: a request for each of thousands of headers takes minutes."""

    _SIZE = 8 << 20  # the headers of torch 2.5 have 6 MiB, compressed

    def __init__(self, *arguments: object, **options: object) -> None:
        self._inner, self._start, self._block = RemoteFetcher(*arguments, **options), 0, b""

    def fetch(self, span: tuple[int, int | None], *, stream: bool = False) -> PartialBuffer:
        """The bytes from the first to the last place; a negative first place counts from the end."""
        first, last = span
        if first < 0 or last is None:
            return self._inner.fetch(span, stream=stream)
        if not self._start <= first <= last < self._start + len(self._block):
            part = self._inner.fetch((first, max(last, first + self._SIZE)))
            self._start, self._block = first, part.read()
        found = self._block[first - self._start : last - self._start + 1]
        return PartialBuffer(BytesIO(found), first, len(found), stream)


def _parsed(file: Location) -> Iterator[TorchWheel]:
    with suppress(InvalidWheelFilename, UsageError):
        _, version, _, tags = parse_wheel_filename(file.name)
        for tag in tags:
            for machine in (platform.machine for platform in Platform):
                if "linux" in tag.platform and tag.platform.endswith(f"_{machine}"):
                    yield TorchWheel(Torch.parse(version.base_version), Python.parse(tag.abi), machine, file)


def _read_variant(torch: Torch, wheels: list[TorchWheel], facts: Facts) -> Cuda | None:
    """Read one wheel for each platform, that of the newest Python; return their CUDA, None if they have none."""
    found: Cuda | None = None
    plain = [wheel for wheel in wheels if not wheel.python.free_threaded]
    for machine in sorted({wheel.machine for wheel in plain}, reverse=True):  # x86_64 first
        newest = max((one for one in plain if one.machine == machine), key=lambda one: (one.python, one.file.name))
        with _opened(newest.file) as wheel:
            cuda = _cuda(wheel, torch)
            if cuda is None:
                continue  # a wheel for the CPU
            if found not in (None, cuda):
                raise wheel.unread(_VERSION, f"it states CUDA {cuda}, and the wheel for x86_64 CUDA {found}")
            found, variants = cuda, facts.row["variants"]
            archs = {**variants.get(cuda.variant, {}), machine: _archs(wheel)}
            facts.add("variants", {**variants, cuda.variant: archs}, wheel.file, _LIBRARY)
            if "default" not in facts.row:
                facts.add("default", cuda.variant, wheel.file, _VERSION)
                _read_build_tools(wheel, facts)
    return found


def _read_build_tools(wheel: _Wheel, facts: Facts) -> None:
    """Read torch/utils/cpp_extension.py, parsed and not executed; and what else limits compilers."""
    try:
        nodes = list(ast.walk(ast.parse(wheel.text(_EXTENSION))))
    except (SyntaxError, ValueError, RecursionError) as error:
        raise wheel.unread(_EXTENSION, f"it is no Python: {error}") from error
    # The C++ standard that is passed to a compiler unless the source names one, or a newer one that a header wants.
    texts = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    standards = [int(found[1]) for text in texts if (found := re.fullmatch(r"(?:-std=)?c\+\+(\d\d)", text))]
    if not standards:
        raise wheel.unread(_EXTENSION, "it passes no C++ standard")
    header = re.search(r"__cplusplus < \d\d(\d\d)\d\dL\b[^#]*#error", wheel.text(_HEADER))
    oldest = _assigned(wheel, nodes, "MINIMUM_GCC_VERSION", ast.literal_eval)

    def gcc_max(node: ast.expr) -> dict[str, int]:
        """The newest major of gcc that the check of compilers accepts, by CUDA. torch lists the first it refuses."""
        text = ast.unparse(node).replace("MINIMUM_GCC_VERSION", repr(oldest))
        table: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = ast.literal_eval(text)
        newest = {cuda: first[0] - (len(first) < 2 or first[1] == 0) for cuda, (_, first) in table.items()}
        return {cuda: limit for cuda, limit in newest.items() if Cuda.parse(cuda) >= Cuda(12, 0)}

    def archs(node: ast.expr) -> list[Arch]:
        return sorted(map(Arch.parse, ast.literal_eval(node)))

    standard = max(min(standards), int(header[1]) if header else 0)
    facts.add("cxx_standard", standard, wheel.file, f"{_EXTENSION} and {_HEADER}")
    facts.add("gcc_max", _assigned(wheel, nodes, "CUDA_GCC_VERSIONS", gcc_max), wheel.file, _EXTENSION)
    facts.add("arch_list", _assigned(wheel, nodes, "supported_arches", archs), wheel.file, _EXTENSION)


def _assigned(wheel: _Wheel, nodes: Sequence[ast.AST], name: str, read: Callable[[ast.expr], _T]) -> _T:
    """What `read` makes of the value that a name gets. Raises MissingToolError."""
    for node in nodes:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(target, ast.Name) and target.id == name for target in targets):
                try:
                    return read(node.value)
                except (ValueError, TypeError, AttributeError, IndexError, UsageError) as error:
                    raise wheel.unread(_EXTENSION, f"{name} cannot be read: {error}") from error
    raise wheel.unread(_EXTENSION, f"it has no {name}")


@dataclass(frozen=True)
class _Wheel:
    """An open wheel of which few members are read."""

    file: Location
    archive: ZipFile

    def member(self, end: str) -> str:
        """The name of the only member that ends like this. Raises MissingToolError."""
        found = [name for name in self.archive.namelist() if name.endswith(end)]
        if len(found) != 1:
            raise self.unread("", f"it has {len(found)} files {end.lstrip('/')}")
        return found[0]

    def read(self, end: str) -> bytes:
        """That member, up to a limit. Raises MissingToolError."""
        name = self.member(end)
        with self.archive.open(name) as stream:
            data = stream.read(_MAX_MEMBER + 1)
        if len(data) > _MAX_MEMBER:
            raise self.unread(name, f"it is larger than {_MAX_MEMBER >> 20} MiB")
        return data

    def text(self, end: str) -> str:
        """That member as text. Raises MissingToolError."""
        return self.read(end).decode(errors="replace")

    def unread(self, member: str, sentence: str) -> MissingToolError:
        """The error of a fact that this wheel does not state."""
        return _unread(": ".join(filter(None, [self.file.name, member])), sentence)


@contextmanager
def _opened(file: Location, **options: object) -> Iterator[_Wheel]:
    """Open a wheel; `options` are those of RemoteZip.

    Raises MissingToolError for what is no wheel, and when its server cannot be reached.
    """
    with ExitStack() as stack:
        try:
            yield _Wheel(file, stack.enter_context(_archive(file, stack, options)))
        except (RemoteZipError, requests.RequestException, OSError, *DAMAGE) as error:
            raise _unread(file.name, f"the wheel cannot be read: {error}") from error


def _archive(file: Location, stack: ExitStack, more: Mapping[str, object]) -> ZipFile:
    """The archive; it is downloaded if the server answers no range requests, and deleted when `stack` is closed."""
    url = split_url(file.url)
    if url.scheme == "file":
        return ZipFile(unquote(url.path))
    if is_offline():
        raise OSError("UV_OFFLINE is set")
    session = requests.Session()
    for scheme in ("https://", "http://"):
        session.mount(scheme, HTTPAdapter(max_retries=3))  # of connections
    options = {"auth": index_login(file.url), "verify": str(ca_bundle()), "timeout": _TIMEOUT, **more}
    try:
        archive: ZipFile = RemoteZip(without_credentials(file.url), session=stack.enter_context(session), **options)
    except RemoteZipError:
        path = Path(stack.enter_context(tempfile.TemporaryDirectory()), file.name)
        download(file, path, kind="wheel", where=file.name)
        archive = ZipFile(path)
    return archive


def _cuda(wheel: _Wheel, torch: Torch) -> Cuda | None:
    """The CUDA that torch/version.py states, None for a wheel without."""
    version, cuda = stated(text := wheel.text(_VERSION))
    if version != str(torch):
        raise wheel.unread(_VERSION, f"it states {f'torch {version}' if version else 'no version'}, not torch {torch}")
    if not cuda and not re.search(r"^cuda\b[^=\n]*= None", text, re.MULTILINE):
        raise wheel.unread(_VERSION, "it does not state the CUDA that torch was built with")
    return Cuda.parse(cuda) if cuda else None


def _archs(wheel: _Wheel) -> list[Arch]:
    """The architectures of torch's own kernels: the text that torch.cuda.get_arch_list() splits.

    It ends with a zero byte; in torch 2.8 and 2.9, the end of another text stands before it.
    """
    one = rb"(?:sm|compute)_\d{2,3}[af]?"
    texts = {text.decode() for text in re.findall(rb"((?:%b )*%b)\0" % (one, one), wheel.read(_LIBRARY))}
    lists = [text.split() for text in texts if "sm_" in text]
    longest = [names for names in lists if len(names) == max(map(len, lists))]
    if len(longest) != 1:
        raise wheel.unread(_LIBRARY, f"it has {len(longest)} lists of GPU architectures")
    ptx = {Arch.of_code(name) for name in longest[0] if name.startswith("compute_")}
    native = (Arch.of_code(name) for name in longest[0] if name.startswith("sm_"))
    return sorted(replace(arch, ptx=arch in ptx) for arch in native if arch)


def _companion(name: str, torch: Torch) -> str:
    """The release of torchvision or torchaudio that belongs to the torch; empty if there is none.

    torchaudio had torch's numbers until 2.11, whose METADATA admits each torch. uv chooses the others.
    """
    for wanted in (f"{name}=={torch}", name) if name == "torchaudio" else (name,):
        with tempfile.TemporaryDirectory() as empty:
            done = compile_captured(f"torch=={torch}\n{wanted}\n", [], folder=Path(empty), index=())
        if done.returncode == 0 and (found := re.search(rf"^{name}==(\d+\.\d+\.\d+)", done.stdout, re.MULTILINE)):
            return found[1]
    return ""


def toolkit_facts(cuda: Cuda) -> Facts:
    """Read the facts of a toolkit from NVIDIA's packages on the package index.

    No package states the first driver that knows the CUDA, nor which images NVIDIA has.

    Raises UsageError: the index has no such toolkit; MissingToolError as `torch_facts`.
    """
    facts = Facts()
    with _opened(_package("nvidia-cuda-nvcc", cuda)) as wheel, tempfile.TemporaryDirectory() as folder:
        member, program, source = wheel.member("/bin/ptxas"), Path(folder, "ptxas"), Path(folder, "a.ptx")
        program.write_bytes(wheel.read(member))
        program.chmod(0o755)
        names = re.findall(r"'(sm_\d+[af]?)'", _said(program, "--help"))
        if not names:
            raise wheel.unread(member, "it names no architecture")
        facts.add("archs", sorted({arch for name in names if (arch := Arch.of_code(name))}), wheel.file, member)
        source.write_text(f".version 99.9\n.target {names[0]}\n.address_size 64\n")
        ptx = re.search(r"current version is '(\d+\.\d+)'", _said(program, source, f"-arch={names[0]}"))
        if ptx is None:
            raise wheel.unread(member, "it does not say its version of PTX")
        facts.add("ptx", ptx[1], wheel.file, member)
    with _opened(_package("nvidia-cuda-crt", cuda)) as wheel:
        member = wheel.member("/crt/host_config.h")
        limit = re.search(r"#if __GNUC__ > (\d+)", wheel.text(member))
        if limit is None:
            raise wheel.unread(member, "it does not limit gcc")
        facts.add("gcc_max", int(limit[1]), wheel.file, member)
    return facts


def _package(name: str, cuda: Cuda) -> Location:
    files = locate(f"{name}=={cuda}.*", "wheel", "--only-binary=:all:")
    return next((one for one in files if one.name.endswith(f"{os.uname().machine}.whl")), files[0])


def _said(program: Path, *arguments: str | Path) -> str:
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False, timeout=_TIMEOUT)
    return done.stdout + done.stderr


def _unread(where: str, sentence: str) -> MissingToolError:
    return MissingToolError(sentence, Code.SOURCE_DIFFERS, where=where)
