"""Names that many projects use, or that another project owns: top-level modules, and namespaces of ops."""

from __future__ import annotations

import re

from packaging.utils import canonicalize_name

#: Names that many projects give their C++ module or the folder of their ops, as their examples do.
_NATIVE = (
    r"_?C(?:_(?:ops|cpu|cuda|gpu|ext))?|_?(?:c(?:pp|uda)_)?(?:ext|extensions?|ops|kernels?)(?:_(?:cpp|cuda))?"
    r"|_?custom_ops?|_?my_?(?:ops?|ext(?:ension)?)"
)
#: Folders of a source.
_FOLDERS = r"tests?|testing|benchmarks?|csrc|src|examples?|docs?|tools|scripts|build|utils"
_MODULE = re.compile(f"{_FOLDERS}|{_NATIVE}")
_FILE = re.compile(rf"(?:{_FOLDERS}|{_NATIVE}|conftest|setup)\.(?:py|(?:.+\.)?so)")
_NAMESPACE = re.compile(rf"(?:_?tests?|examples?|utils?|cpp|cuda|native|TORCH_EXTENSION_NAME|{_NATIVE})")

#: The namespaces of the ops in torch 2.11, and of packages that many environments have; and the project of each.
_OWNERS = {
    **dict.fromkeys(
        (
            "_c10d_functional", "_c10d_functional_autograd", "_dtensor", "_quantized", "aten", "c10d", "debugprims",
            "export", "inductor", "mkl", "mkldnn", "mkldnn_prepacked", "onednn", "prepacked", "prim", "prims",
            "profiler", "quantization", "quantized", "rngprims", "sparse", "static_runtime", "symm_mem",
        ),
        "torch",
    ),
    "torchvision": "torchvision", "image": "torchvision", "torchaudio": "torchaudio", "torchao": "torchao",
    "fbgemm": "fbgemm-gpu", "xformers": "xformers", "torch_scatter": "torch-scatter", "torch_sparse": "torch-sparse",
}  # fmt: skip


def is_common_module(top: str, project: str) -> bool:
    """Whether a file or a folder at the top of site-packages has a name that other projects install too."""
    stem = top.partition(".")[0]
    pattern = _FILE if "." in top else _MODULE
    return pattern.fullmatch(top) is not None and not _same(stem, project)


def is_common_namespace(namespace: str, project: str) -> bool:
    """Whether other projects register ops in a namespace of this name."""
    return _NAMESPACE.fullmatch(namespace) is not None and not _same(namespace, project)


def owner_of(namespace: str, project: str) -> str:
    """The other project whose ops are in this namespace, or empty."""
    owner = _OWNERS.get(namespace, "")
    return "" if _same(owner, project) or canonicalize_name(project).startswith(f"{owner}-") else owner


def _same(name: str, project: str) -> bool:
    return canonicalize_name(name).strip("-") == canonicalize_name(project)
