#!/bin/sh
# torch 2.11.0: ATen/cuda/CUDABlas.h, which every CUDA wheel installs, declares functions that no library of torch exports.
#
# An extension that calls at::cuda::blas::gemm<float> (the successor of THCudaBlas_Sgemm) compiles and links, since shared
# libraries may have undefined symbols, and its import fails with `undefined symbol`. Neighbours in the same header are
# exported, such as trsm<float>. What works: cuBLAS itself, with at::cuda::getCurrentCUDABlasHandle().
#
# Seen: gemm<float>, bgemm<float> and gemv<float> are declared and not exported; trsm<float> and the handle are exported.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip download -q --no-deps --only-binary :all: --python-version 3.12 --platform manylinux_2_28_x86_64 torch==2.11.0
venv/bin/python - <<'PYTHON'
from pathlib import Path
from zipfile import ZipFile

with ZipFile(next(Path().glob("torch-*.whl"))) as wheel:
    for member in ("torch/include/ATen/cuda/CUDABlas.h", "torch/lib/libtorch_cuda.so"):
        wheel.extract(member)
PYTHON
header=torch/include/ATen/cuda/CUDABlas.h
nm -D --defined-only -C torch/lib/libtorch_cuda.so >exported.txt
for name in 'gemm<float>' 'bgemm<float>' 'gemv<float>'; do
    grep "void $name(" $header
    if grep "at::cuda::blas::$name" exported.txt; then exit 1; fi
done
grep 'at::cuda::blas::trsm<float>' exported.txt
grep 'at::cuda::getCurrentCUDABlasHandle' exported.txt
