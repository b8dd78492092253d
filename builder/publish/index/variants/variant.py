"""The variant of a published wheel: its label, its version without the label, and its properties."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from packaging.version import Version

from builder.errors import UsageError
from builder.matrix.axes import Cuda
from builder.publish.index.entry import Entry

#: The draft whose format is written. Drafts begin with zero, and must not be used in production (PEP 825).
SCHEMA = "https://variants-schema.wheelnext.dev/peps/850/v0.2.0.json"
_NAMESPACE = "nvidia"
_HEAD: Mapping[str, object] = {
    "$schema": SCHEMA,
    "default-priorities": {"namespace": [_NAMESPACE]},
    "providers": {
        _NAMESPACE: {
            "requires": ["nvidia-variant-provider>=0.0.1,<1.0.0"],
            "plugin-api": "nvidia_variant_provider.plugin:NvidiaVariantPlugin",
        }
    },
}


@dataclass(frozen=True)
class Variant:
    """What distinguishes a wheel from the others of its version.

    Attributes:
        label: the last part of the file name, such as `cu126`.
        version: the version without the label: `1.0+torch211` for `1.0+cu126.torch211`.
        features: the values of each feature of the namespace `nvidia`, sorted.

    """

    label: str
    version: str
    features: Mapping[str, tuple[str, ...]]


def variant_of(entry: Entry) -> Variant:
    """The variant of a wheel; raises UsageError if the wheel has no CUDA variant, or its GPU code is not known."""
    local = (entry.version.local or "").split(".")
    labels = [segment for segment in local if re.fullmatch(r"cu\d{2,3}", segment)]
    if len(labels) != 1:
        raise UsageError("its version does not name one CUDA variant", where=entry.filename)
    if entry.farm is None or not entry.farm.archs:
        raise UsageError("the check device-code has not read its GPU code", where=entry.filename)
    cudas = [_cuda(name) for name in entry.farm.cuda]
    codes = [re.fullmatch(r"(sm|compute)_(\d+)", code) for code in entry.farm.archs]
    if None in codes:
        raise UsageError("its code for one GPU model only has no variant property", where=entry.filename)
    rest = ".".join(segment for segment in local if segment not in labels)
    return Variant(
        label=labels[0],
        version=str(Version(f"{entry.version.public}+{rest}" if rest else entry.version.public)),
        features={
            "cuda_version_lower_bound": (str(min(cudas)),),
            "cuda_version_upper_bound": (str(max(cudas).major + 1),),
            "sm_arch": tuple(sorted(f"{m[2]}_{'real' if m[1] == 'sm' else 'virtual'}" for m in codes if m)),
        },
    )


def metadata_of(variants: Mapping[str, Variant]) -> dict[str, object]:
    """The variant metadata of PEP 850, of one wheel or of all wheels of a version, by label."""
    listed = {
        label: {_NAMESPACE: {feature: list(values) for feature, values in sorted(one.features.items())}}
        for label, one in sorted(variants.items())
    }
    return {**_HEAD, "variants": listed}


def _cuda(name: str) -> Cuda:
    """The CUDA of `cu126`; of `cu13`, the first of this major version."""
    return Cuda.parse(name if len(name) == len("cu126") else f"{name}0")
