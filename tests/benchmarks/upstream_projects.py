"""Builds projects of others as a researcher would: one command each, and no edited file.

    python tests/benchmarks/upstream_projects.py [--old] FOLDER [NAME…]

Runs `buildfarm build SOURCE` for one cell and one GPU architecture in a folder of its own under FOLDER, which also
holds the store. With `--old`, the sources are those of OLD. Prints a row for each project: the result, the
seconds, and the wheel or the error with its first hint. A project in KNOWN cannot be built, for the reason that stands
there. The exit code is 1 if another one fails, or if one of KNOWN ends with a different code.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

CELL = ("--torch", "2.11", "--cuda", "13.0", "--python", "3.12", "--arch", "9.0", "--executor", "local")
PROJECTS = """
torch-scatter==2.1.2 torch-cluster==1.6.3 torch-spline-conv==1.2.2 torchsort==0.1.9 torch-points-kernels==0.7.0
torch-linear-assignment==0.1.0rc0 spatial-correlation-sampler==0.5.0 warp-rnnt==0.7.0 dcnv4==1.0.0 diso==0.1.4
inplace-abn==1.1.0 rotary-emb==0.5 chamferdist==1.0.3 torch-kdtree==1.0 moe-kernels==0.1.0 kaldifeat==1.9
fast-rnnt==1.3 sphericart-torch==1.0.5 vesin-torch==0.6.2 modulated-deform-conv==1.0.2 lanms-pytorch==1.0.3
cuneb-chenn==0.0.4 deformops==3.0.1 bilateralfilter-torch==1.1.0
"""
#: Sources of 2018 to 2024 that nobody maintains: of the package index, and folders of git repositories. Not among them
#: are sources that cannot work for anybody: without the header files (multiscaledeformableattention-linux 1.0,
#: quant-matmul 1.2.0, polygon-iou 1.0.7) or any C++ (knn-torch 0.1.1, sparselinear 0.0.5), with only Python that
#: compiles when it is imported (hdtorch 1.1.0, qtorch-plus 0.2.0, grid-fusion-pytorch 0.1.2, gpytorch-lattice-kernel
#: 0.0.dev1), with a library that another build makes first (HawkAaron/warp-transducer, stevenygd/PointFlow), or with
#: CUDA files that only torch.utils.ffi of torch 0.4 compiled (the master branch of jwyang/faster-rcnn.pytorch).
OLD = """
torch-baidu-ctc==0.3.0 warp-rna==0.3.0 torch-edit-distance==0.4.0 torch-discounted-cumsum==1.1.0 torch-dwconv==0.1.0
torch-bincount==0.1.1 svox==0.2.32 neural-renderer-pytorch==1.1.3 dcnv2==0.4 jointbilateralfilter-torch==1.0.0
pytorch-fast-transformers==0.4.0 quad-iou==0.2.0 cornerpool==0.0.2 cumcubes==0.0.3 torch-unified==0.1
pyronn-torch==0.2.3 torchac-cuda==0.2.5 triple-walk==0.0.4 fastgeodis==1.0.5 evnn-pytorch==0.2.0 torch-unique==1.0.3
CharlesShang/DCNv2@c7f778f28b84c66d3af2bf16f19148a07051dac1
facebookresearch/SparseConvNet@cf251d058959a9dbaccb25fc919dc4f4548be232
jwyang/faster-rcnn.pytorch@6f0c63b64dde6dc4eb3e24f90650d789f96f4c75#subdirectory=lib
erikwijmans/Pointnet2_PyTorch@b5ceb6d9ca0467ea34beb81023f96ee82228f626#subdirectory=pointnet2_ops_lib
ShichenLiu/SoftRas@b569bed5759cf2014f9b79c12ad10eef7b80ec34
ThibaultGROUEIX/ChamferDistancePytorch@364c03c4ec5febc1e21068ffac362eca4a8f61d9#subdirectory=chamfer3D
daerduoCarey/PyTorchEMD@e5c0feb8c15741a858362f9c397d9ed4b8b1752b
POSTECH-CVLab/point-transformer@10d43ab5210fc93ffa15886f2a4c6460cc308780#subdirectory=lib/pointops
princeton-vl/RAFT@2888e15a51fa41140771d3f498ed8023cff098d1#subdirectory=alt_cuda_corr
ashawkey/torch-ngp@b6e080468925f0bb44827b4f8f0ed08291dcf8a9#subdirectory=gridencoder
NVIDIA/flownet2-pytorch@bce69c881ad2b11bef1e6ce9fd0dfd45bd8a1756#subdirectory=networks/resample2d_package
sshaoshuai/PointRCNN@1d0dee91262b970f460135252049112d80259ca0#subdirectory=lib/utils/iou3d
feihuzhang/GANet@0d9d94fa9016c741eafc7044a9764ee2b16c59ab#subdirectory=libs/GANet
StevenGrove/TreeFilter-Torch@46f36024f4522056fb9a3edf90c94f0a86a1352b#subdirectory=furnace/kernels/lib_tree_filter
HuiZeng/Image-Adaptive-3DLUT@b491f6df64a588864739a157db271e5c848e1805#subdirectory=trilinear_cpp
zju3dv/clean-pvnet@7226b4e72fa0353b0ae1c5f30f02ef9577574fa1#subdirectory=lib/csrc/ransac_voting
lucastabelini/LaneATT@2f8583ba14eccba05e6779668bc3a38bc751984a#subdirectory=lib/nms
fundamentalvision/Deformable-DETR@11169a60c33333af00a4849f1808023eba96a931#subdirectory=models/ops
dvlab-research/PointGroup@a41c2cd22808861f0d4986b2825875c10bb661e5#subdirectory=lib/pointgroup_ops
"""
#: Project → the code of the error, and what is true about the source.
KNOWN = {
    "cuneb-chenn": ("checks-failed", "its import reads variables of a file .env, which the archive lacks"),
    "evnn-pytorch": ("compile-failed", "includes cblas.h, which a package of the system brings"),
    "pointgroup_ops": ("compile-failed", "includes headers of sparsehash, which a package of the system brings"),
    "moe-kernels": ("compile-failed", "uses cub::Sum and cub::Max, which CUDA 13 removed"),
    "pyronn-torch": ("compile-failed", "reads textures by references, which CUDA 12 removed"),
    "torch-points-kernels": ("compile-failed", "lacks #include <memory>; requires numpy<1.20, too old for Python 3.12"),
}


def name_of(project: str) -> str:
    """`torch-scatter` of `torch-scatter==2.1.2`, `pointops` of `OWNER/NAME@COMMIT#subdirectory=lib/pointops`."""
    inside = project.partition("#subdirectory=")[2]
    return Path(inside or project.partition("==")[0].partition("@")[0]).name


def build(project: str, folder: Path) -> tuple[str, str]:
    """The code of the error, or `built`; and the wheel with what its checks say, or the sentence and its first hint."""
    own = folder / name_of(project)
    own.mkdir(parents=True, exist_ok=True)
    source = f"https://github.com/{project}" if "@" in project else project
    argv = [sys.executable, "-m", "builder", "build", source, *CELL, "--store", str(folder / "store"), "--json"]
    done = subprocess.run(argv, cwd=own, capture_output=True, text=True, check=False)
    (own / "stderr.txt").write_text(done.stderr)
    data: dict[str, Any] = json.loads(done.stdout)
    problems = data["errors"] if "errors" in data else [each for each in data["builds"] if each["status"] == "failed"]
    for problem in problems:
        return problem["code"], " · ".join([problem["error"], *problem["hints"][:1]])
    (made,) = data["builds"]
    verdicts = [proof["verdict"] for proof in made["proofs"]]
    return "built", f"{made['wheel']}: {verdicts.count('passed')} passed, {verdicts.count('not run')} not run"


def main() -> int:
    """Build each project, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these projects")
    parser.add_argument("--old", action="store_true", help="the sources of OLD")
    options = parser.parse_args()
    folder = options.folder.resolve()
    wrong = 0
    for project in (OLD if options.old else PROJECTS).split():
        name = name_of(project)
        if options.names and name not in options.names:
            continue
        start = time.monotonic()
        result, text = build(project, folder)
        wrong += result != KNOWN.get(name, ("built",))[0]
        print(f"| {project} | {result} | {time.monotonic() - start:.0f} s | {text} |", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
