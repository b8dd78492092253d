"""What `doctor` says about environments that would be large to install. The tests make the facts and no files."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from builder.commands.doctor import doctor_text, judge
from builder.matrix.axes import Arch, Cuda, Gpu, Platform, Python
from builder.matrix.compat import Compat
from builder.proofs.environment import torch_checks
from builder.proofs.environment.cures import Cures, Finding, Severity
from builder.proofs.environment.facts import (
    InstalledEnvironment,
    InstalledPackage,
    InstalledPython,
    Machine,
    TorchInstall,
)
from builder.proofs.environment.package_checks import check_companions, check_nvidia, check_safe_versions
from builder.proofs.environment.torch_checks import check_gpus
from builder.wheelfile.compatibility import codes_for

COMPAT = Compat.load()
SITE = Path("/env/lib/python3.12/site-packages")
BLACKWELL = Machine("580.95.05", (Gpu("RTX 5090", Arch(12, 0)),))


def package(name: str, version: str, *requires: str, folder: Path = SITE, **facts: str) -> InstalledPackage:
    return InstalledPackage(name, version, folder, requires, **facts)  # type: ignore[arg-type]


def environment(
    torch: str = "2.11.0",
    cuda: str = "13.0",
    *packages: InstalledPackage,
    requires: Sequence[str] = (),
    **facts: object,
) -> InstalledEnvironment:
    """An environment with this torch and these packages; `torch` may be empty."""
    own = [package("torch", torch, *requires)] if torch else []
    interpreter = InstalledPython(
        Path("/env/bin/python"), Path("/env"), Python(3, 12), (SITE,), (SITE,), None, markers={}
    )  # fmt: skip
    found = InstalledEnvironment(
        interpreter=interpreter,
        packages=(*own, *packages),
        torches=(TorchInstall(SITE, torch, Cuda.parse(cuda) if cuda else None, own[0]),) if torch else (),
        machine=Machine(),
        nvcc=f"{cuda}.88",
        variables={},
        conda={},
        platform=Platform.LINUX_X86_64,
    )
    return replace(found, **facts)  # type: ignore[arg-type]


def findings(check: Callable[[Cures, TorchInstall], Iterator[Finding]], found: InstalledEnvironment) -> list[Finding]:
    assert found.torch
    return [*check(Cures(found, COMPAT), found.torch)]


def only(found: Sequence[Finding], code: str, level: Severity = Severity.FAULT) -> Finding:
    """The only finding, which has this code."""
    assert [(one.code, one.level) for one in found] == [(code, level)]
    return found[0]


def gpu(name: str, major: int, minor: int, driver: str = "580.95.05") -> Machine:
    return Machine(driver, (Gpu(name, Arch(major, minor)),))


@pytest.mark.parametrize(
    ("torch", "cuda", "machine", "code", "what", "cure"),
    [
        ("2.11.0+cu126", "12.6", BLACKWELL, "gpu-unknown-to-torch", "RTX 5090 (sm_120), only for sm_50",
         "https://download.pytorch.org/whl/cu128 torch==2.11.0+cu128"),
        ("2.4.1", "12.1", BLACKWELL, "gpu-unknown-to-torch", "", "torch==2.7.1+cu128 torchvision==0.22.1+cu128"),
        ("2.11.0+cu128", "12.8", gpu("GB10", 12, 1), "gpu-unknown-to-nvrtc", "does not know the GB10",
         "torch==2.11.0+cu130"),
        ("2.11.0+cpu", "", BLACKWELL, "torch-without-cuda", "is a CPU build", "torch==2.11.0+cu130"),
    ],
    ids=["another cuda", "another torch and its companion", "not by nvrtc", "cpu"],
)  # fmt: skip
def test_a_gpu_that_torch_does_not_serve_gets_one_that_does(
    torch: str, cuda: str, machine: Machine, code: str, what: str, cure: str
) -> None:
    others = [package("torchvision", "0.19.1", "torch==2.4.1")] if torch == "2.4.1" else []
    found = findings(check_gpus, environment(torch, cuda, *others, machine=machine))
    one = only(found, code, Severity.FAULT if cuda else Severity.NOTE)
    assert what in one.what
    assert cure in one.cure[0]


def test_one_cure_of_two_faults_is_printed_once() -> None:
    found = environment("2.11.0+cu130", "13.0", machine=gpu("V100", 7, 0, "550.54.14"))
    faults = findings(check_gpus, found)
    assert [one.code for one in faults] == ["driver-too-old", "gpu-unknown-to-torch"]
    text = doctor_text(found, faults)
    assert (text.count(" pip install"), text.count("cure: the same as above\n")) == (1, 1)
    assert "  also: driver 580.65.06 or newer runs the installed torch\n" in text


def test_without_a_torch_for_the_machine_the_advice_says_what_is_missing() -> None:
    for machine, code, advice in (
        (gpu("RTX 5090", 12, 0, "470.10"), "driver-too-old", "driver 470.10 and RTX 5090 (sm_120): update the driver"),
        (gpu("Rubin", 10, 7, "610.10"), "gpu-unknown-to-nvrtc", "no torch in buildfarm's version table is for Python"),
    ):
        first = findings(check_gpus, environment("2.11.0+cu130", "13.0", machine=machine))[0]
        assert (first.code, first.cure) == (code, ())
        assert advice in first.advice
    one = only(judge(Cures(environment("", machine=BLACKWELL), COMPAT)), "no-torch")
    assert "torch==2.15.0+cu132" in one.cure[0]


@pytest.mark.parametrize("driver", ["", "450.80.02", "525.60.13", "580.95.05"])
def test_the_torch_that_a_cure_names_exists_and_runs(driver: str) -> None:
    """For every torch, CUDA and GPU of the table: the cure is a wheel for this Python, with code for the GPU."""
    capabilities = [(7, 0), (7, 5), (8, 0), (9, 0), (10, 0), (12, 0)]
    fits = 0
    for torch, (major, minor) in product(COMPAT.torches, capabilities):
        found = environment(str(torch), str(COMPAT.torch(torch).default), machine=gpu("GPU", major, minor, driver))
        fit = Cures(found, COMPAT).nearest_torch()
        if fit is None:
            continue
        fits += 1
        assert COMPAT.why_not(*fit, Python(3, 12), Platform.LINUX_X86_64) is None
        assert codes_for([arch.sm for arch in COMPAT.official_archs(*fit, Platform.LINUX_X86_64)], Arch(major, minor))
        assert not driver or int(driver.split(".", maxsplit=1)[0]) >= {11: 450, 12: 525, 13: 580}[fit[1].major]
    assert fits >= len(COMPAT.torches)


@pytest.mark.parametrize(
    ("torch", "companion", "what", "cure"),
    [
        ("2.11.0+cu128", ("torchvision", "0.26.0+cpu", "torch==2.11.0"),
         "torchvision 0.26.0+cpu is for cpu, but torch 2.11.0+cu128 is for cu128",
         "/whl/cu128 torchvision==0.26.0+cu128 torch==2.11.0+cu128"),
        ("2.11.0+cu128", ("torchvision", "0.26.0+cu126", "torch==2.11.0"),
         "torchvision 0.26.0+cu126 is for cu126, but torch 2.11.0+cu128 is for cu128", "torchvision==0.26.0+cu128"),
        # Without a requirement, the table says it.
        ("2.14.0", ("torchaudio", "2.11.0"), "", ""),
        ("2.14.0", ("torchaudio", "2.9.0"), "torchaudio 2.9.0 belongs to torch 2.9.0, but torch 2.14.0 is installed",
         "torchaudio==2.11.1"),
        # torchaudio 2.11.1 needs a newer torch than it says.
        ("2.12.1", ("torchaudio", "2.11.1", "torch>=2.11"),
         "torchaudio 2.11.1 needs torch 2.13.0, but torch 2.12.1 is installed", "torchaudio==2.11.0"),
        ("2.13.0", ("torchaudio", "2.11.1", "torch>=2.11"), "", ""),
        # A torch that the table does not know is judged by requirements only.
        ("2.99.0", ("torchvision", "0.99.0"), "", ""),
        ("2.16.0.dev20261101+cu130", ("torchaudio", "2.11.0"), "", ""),
        ("2.99.0", ("torchvision", "0.26.0", "torch==2.11.0"),
         "torchvision 0.26.0 requires torch==2.11.0, but torch 2.99.0 is installed",
         "buildfarm's version table has no torchvision for torch 2.99.0"),
    ],
)  # fmt: skip
def test_a_companion_of_another_torch_or_cuda(torch: str, companion: tuple[str, ...], what: str, cure: str) -> None:
    cuda = "12.8" if torch.endswith("cu128") else "13.0"
    found = findings(check_companions, environment(torch, cuda, package(*companion)))
    assert [one.what for one in found] == ([what] if what else [])
    for one in found:
        assert one.code == ("companion-of-another-cuda" if "is for" in what else "companion-of-another-torch")
        assert cure in (one.cure[0] if one.cure else one.advice)
    if torch.startswith("2.99"):
        assert findings(check_gpus, environment(torch, "13.0")) == []


def test_torch_of_conda_and_of_pip() -> None:
    found = environment("2.5.1", "12.4", conda={"pytorch": "2.5.1"})
    one = only(findings(torch_checks.check_installers, found), "torch-of-conda-and-pip")
    assert one.cure[0] == "conda remove --yes --force --prefix /env pytorch"
    torch = package("torch", "2.5.1", installer="conda")
    conda = replace(found, packages=(torch,), torches=(replace(found.torches[0], package=torch),))
    assert findings(torch_checks.check_installers, conda) == []


def test_a_torch_in_the_user_site_hides_that_of_the_environment() -> None:
    found = environment()
    user = Path("/home/user/.local/lib/python3.12/site-packages")
    other = TorchInstall(user, "2.9.0", Cuda(12, 8), package("torch", "2.9.0", folder=user))
    interpreter = replace(found.interpreter, path=(user, SITE), user_site=user)
    hidden = replace(found, torches=(other, *found.torches), interpreter=interpreter)
    one = only(findings(torch_checks.check_path, hidden), "two-torches")
    assert one.cure == ("export PYTHONNOUSERSITE=1",)
    visible = replace(found, torches=(*found.torches, other))
    assert findings(torch_checks.check_path, visible) == []


@pytest.mark.parametrize("marker", ["", "; extra == 'with-cuda'"])
def test_packages_of_another_cuda_that_another_package_requires_are_no_fault(marker: str) -> None:
    user = package("cupy-like", "1", f"nvidia-cublas-cu12{marker}")
    found = environment("2.11.0", "13.0", package("nvidia-cublas-cu12", "12.8"), user)
    assert findings(check_nvidia, found) == []


def test_a_version_that_trusts_compromised_authorities_is_a_note() -> None:
    found = environment("2.11.0", "13.0", package("certifi", "2026.7.4"), package("uv", "0.13.2"))
    first, second = check_safe_versions(Cures(found, COMPAT))
    assert {first.code, second.code} == {"unsafe-version"}
    assert first.cure[0].endswith("'certifi>=2026.10.19'")
    assert "uv 0.13.2 trusts certificate authorities" in second.what
