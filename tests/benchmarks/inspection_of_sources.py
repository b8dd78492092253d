"""What `buildfarm add` writes for 60 sources of the package index.

    python tests/benchmarks/inspection_of_sources.py FOLDER [NAME…] > before.txt

Downloads the source distributions of SOURCES into FOLDER: 0.5 GB, unpacked. The inspection reads each one twice: as it
is, and as its repository has it, without PKG-INFO and the folder *.egg-info, which state what only the build backend
knows there. Nothing of a source is run. Two versions of buildfarm are compared by what the call prints: a part of the
inspection stays only if the output without it differs. A part that runs for no source is found by

    python -m coverage run --branch --include='builder/recipes/*,builder/diagnosis/*' tests/benchmarks/inspection_…
"""

import argparse
import json
import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from builder.errors import UsageError
from builder.matrix.config import SdistSource
from builder.recipes.fetch import PinnedSource, parse_reference, pin, unpack_source
from builder.recipes.inspection.draft_recipe import inspect_source

SOURCES = """
apache-tvm-ffi==0.1.15.post2 auto-gptq==0.7.1 beamgrad==2.3.0 bilateralfilter-torch==1.1.0 causal-conv1d==1.7.0
chamferdist==1.0.3 colossalai==0.5.0 ctcdecode==1.0.2 cufinufft==2.5.1 cuneb-chenn==0.0.4 dbscan-torch==0.2.0
deformops==3.0.1 dftd4==4.3.1 diso==0.1.4 evnn-pytorch==0.2.0 fast-hadamard-transform==1.1.0 fast-rnnt==1.3
fastsafetensors==0.5.0 flash-attn==2.8.3.post2 flashmel==0.1.0 foldedtensor==0.4.0 fpsample==1.0.2 gptqmodel==7.7.0
grouped-gemm==0.3.0 gsplat==1.5.3 hamming-sim-pytorch==0.1.2.2 haste-pytorch==0.5.0rc0 inplace-abn==1.1.0
kaldifeat==1.24 lanms-pytorch==1.0.3 lightgbm==4.7.0 mamba-ssm==2.3.2.post1 megablocks==0.10.0
metatensor-torch==0.10.8 minkowskiengine==0.5.4 mmcv==2.2.0 modulated-deform-conv==1.0.2 moe-kernels==0.1.0
nerfacc==0.5.3 openequivariance==0.7.0 philtorch==0.7.0 pycuda==2026.1 pytorch-fft==0.15 rwkv==0.8.32
safetensors==0.8.0 scikit-fmm==2025.6.23 spatial-correlation-sampler==0.5.0 sphericart-torch==2.0.4
torch-c-dlpack-ext==0.1.5 torch-cluster==1.6.3 torch-kdtree==1.0 torch-linear-assignment==0.1.0
torch-points-kernels==0.7.0 torch-scatter==2.1.2 torch-sparse==0.6.18 torchac==0.8.9 torchsort==0.1.10
transformer-engine-torch==2.20.2 vesin-torch==0.6.2 vllm==0.33.0
"""


def fetched(label: str, folder: Path) -> tuple[PinnedSource, Path]:
    """The source distribution NAME==VERSION, unpacked below `folder`."""
    home = folder / label.replace("==", "-")
    kept = home / "pin.json"
    if not kept.exists():
        shutil.rmtree(home, ignore_errors=True)
        (home / "source").mkdir(parents=True)
        pinned = pin(parse_reference(label))
        assert isinstance(pinned.source, SdistSource)
        tree = unpack_source(pinned, home / "source", cache=folder / "files")
        kept.write_text(json.dumps({"sha256": pinned.source.sha256, "tree": str(tree.relative_to(home))}))
    name, _, version = label.partition("==")
    stated = json.loads(kept.read_text())
    source = SdistSource(name, version, stated["sha256"])
    return PinnedSource(source, label, name), home / stated["tree"]


def without_metadata(tree: Path, target: Path) -> Path:
    """The source as its repository has it: hard links to all but what the command `sdist` adds."""
    made = shutil.ignore_patterns("PKG-INFO", "*.egg-info")
    return Path(shutil.copytree(tree, target, symlinks=True, ignore=made, copy_function=os.link))


def drafted(pinned: PinnedSource, tree: Path) -> str:
    """The recipe and the findings, or the error."""
    try:
        draft = inspect_source(pinned, tree)
    except UsageError as error:
        return "\n".join([f"error: {error.where}: {error.sentence}", *(f"  hint: {hint}" for hint in error.hints), ""])
    asks = f"asks the build backend for the {' and '.join(draft.unknown)}\n" if draft.unknown else ""
    lines = [f"{'?' if each.question else '-'} {each.found} -> {each.consequence}" for each in draft.findings]
    written = [line for line in draft.text("add").splitlines() if not line.startswith("source:")]
    return asks + "\n".join([*written, *lines, ""]).replace(str(tree), "TREE")


def main() -> None:
    """Inspect the sources."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these projects")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    folder = options.folder.resolve()
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        for label in SOURCES.split():
            if not options.names or label.partition("==")[0] in options.names:
                pinned, tree = fetched(label, folder)
                print(f"## {label}\n{drafted(pinned, tree)}")
                repository = replace(pinned, label=f"{label} (repository)")
                print(f"## {repository.label}\n{drafted(repository, without_metadata(tree, Path(temporary, label)))}")


if __name__ == "__main__":
    main()
