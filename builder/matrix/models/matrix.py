"""The keys of matrix.yaml: type, default, description and examples of each."""

from __future__ import annotations

from pydantic import Field, model_validator

from builder.matrix.axes import Platform
from builder.matrix.config import TORCH_INDEX
from builder.matrix.models import fields


class ExcludeModel(fields.StrictModel):
    """Cells that get no wheel: those that match every key given here. At least one key besides `reason` is required."""

    reason: str = Field(
        min_length=1,
        description="Why these cells get no wheel, one sentence. The plan shows it.",
        examples=["too slow to compile with CUDA 11.8"],
    )
    torch: fields.TorchText | None = Field(
        default=None,
        description="A torch series or release. Without this key, every torch.",
        examples=["2.0", "2.11.0"],
    )
    cuda: fields.CudaVersion | None = Field(
        default=None, description="A CUDA version. Without this key, every CUDA version.", examples=["11.8"]
    )
    python: fields.PythonVersion | None = Field(
        default=None, description="A Python version. Without this key, every Python version.", examples=["3.14"]
    )
    extension: str | None = Field(
        default=None,
        description="The `name` of an extension. Without this key, every extension.",
        examples=["torch_scatter"],
    )

    @model_validator(mode="after")
    def _require_axis(self) -> ExcludeModel:
        if not any((self.torch, self.cuda, self.python, self.extension)):
            raise ValueError("excludes every cell; name at least one of torch, cuda, python, extension")
        return self


class ImageModel(fields.StrictModel):
    """Base images for some cells, in place of the images that buildfarm chooses."""

    cells: str = Field(
        description="Pattern of cell names; `*` matches any text.", examples=["torch2.1*-cu118-*", "torch2.*-cu121-*"]
    )
    image: fields.ImageName = Field(
        description="The base image for builds, with its tag or digest.",
        examples=["registry.example/team/cuda12:2026-11-01"],
    )
    pythons: fields.ImageName | None = Field(
        default=None,
        description="The image from which buildfarm copies /opt/python; it may be the same as `image`. Without this"
        " key, pypa's manylinux image.",
        examples=["registry.example/team/manylinux_2_28:2026-11-01"],
    )
    runtime: fields.ImageName | None = Field(
        default=None,
        description="The base image of the runtime images. A check in a container runs in a runtime image. The base"
        " image needs no CUDA toolkit. Without this key, `image`.",
        examples=["registry.example/team/small:2026-11-01"],
    )
    toolkit: fields.CudaVersion | None = Field(
        default=None,
        description="The CUDA version of the toolkit in the image. Needed if its minor version differs from that of the"
        " cells. The major versions must be equal.",
        examples=["12.4"],
    )


class MatrixModel(fields.StrictModel):
    """matrix.yaml: the versions to build for, the extensions to build, and settings for all of them."""

    torch: list[fields.TorchRelease] = Field(
        min_length=1,
        description="PyTorch releases. A series such as 2.11 means its newest patch release.",
        examples=[["2.10", "2.11.0"]],
    )
    cuda: list[fields.CudaVersion] = Field(
        min_length=1,
        description="CUDA versions that the torch wheels are built for (`torch.version.cuda`, not the driver's"
        " version).",
        examples=[["12.8", "13.0"]],
    )
    python: list[fields.PythonVersion] = Field(
        min_length=1,
        description="CPython versions. The suffix `t` means a free-threaded Python.",
        examples=[["3.12", "3.13", "3.14t"]],
    )
    archs: list[fields.ArchName] = Field(
        default=[],
        description="GPU architectures to compile for. Without this key, each build takes the architectures of"
        " torch's own wheel, so that the extension runs on every GPU that torch runs on.",
        examples=[["8.0", "9.0", "12.0+PTX"]],
    )
    platforms: list[Platform] = Field(
        default=[Platform.LINUX_X86_64],
        min_length=1,
        description="Operating system and processor that wheels run on: linux_x86_64 or linux_aarch64.",
        examples=[["linux_x86_64", "linux_aarch64"]],
    )
    extensions: list[str] = Field(
        description="Folders with an extension.yaml, relative to this file.", examples=[["extensions/torch_scatter"]]
    )
    exclude: list[ExcludeModel] = Field(
        default=[],
        description="Cells that get no wheel, each with a reason.",
        examples=[[{"torch": "2.0", "cuda": "11.8", "reason": "nobody uses it"}]],
    )
    images: list[ImageModel] = Field(
        default=[],
        description="Base images for some cells. The first entry whose pattern matches applies. For other cells,"
        " buildfarm uses NVIDIA's image with the CUDA toolkit.",
        examples=[[{"cells": "torch2.*-cu121-*", "image": "registry.example/team/cuda12:2026-11-01"}]],
    )
    registries: dict[fields.RegistryHost, fields.MirrorLocation] = Field(
        default={},
        description="Maps a container registry to its mirror. buildfarm pulls the images of the registry from the"
        " mirror, under the same path. With `docker.io: registry.example/hub`, it pulls nvidia/cuda:TAG as"
        " registry.example/hub/nvidia/cuda:TAG. Dockerfiles, buildfarm.lock and wheels name the original image. The"
        ' environment variable BUILDFARM_REGISTRIES="docker.io=registry.example/hub …" takes precedence.',
        examples=[{"docker.io": "registry.example/hub", "quay.io": "registry.example/quay"}],
    )
    torch_index: str = Field(
        default=TORCH_INDEX,
        description="URL of PyTorch's wheel index, for CUDA variants of torch that the package index does not serve."
        " `{variant}` is replaced by the variant, such as cu130.",
        examples=["https://mirror.example/pytorch/{variant}"],
    )
