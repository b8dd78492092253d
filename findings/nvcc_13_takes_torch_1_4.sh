#!/bin/sh
# nvcc 13.0.88 with g++ 12 compiles code that includes all of ATen of torch 1.4 (January 2020, written for CUDA 10.1 and C++11),
# as C++17 and for sm_90: to PTX for the GPU and to assembly for the CPU.
#
# So two versions of an old source can be compared as compiled code, without an old CUDA, compiler or Python: the headers
# of torch are a part of its wheel, and need no library as long as nothing is linked. What torch removed later is there:
# AT_CHECK compiles with torch 1.4, and is unknown to torch 1.5.
#
# Seen: torch 1.4.0 with AT_CHECK: compiles, and the PTX has the kernel; torch 1.5.0: "AT_CHECK" is undefined, in the
# source and nowhere else; TORCH_CHECK compiles with both.
#
# Downloads two wheels of 750 MB.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv env
env/bin/python -m pip install -q nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 \
    nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85
bin=$(ls -d env/lib/python3*/site-packages/nvidia/cu13/bin)
"$bin/nvcc" --version | tail -n 2 | head -n 1
for torch in 1.4.0 1.5.0; do
    env/bin/python -m pip download -q --no-deps --python-version 3.8 --only-binary :all: --platform manylinux1_x86_64 \
        --dest wheels torch==$torch
    env/bin/python -m zipfile -e wheels/torch-$torch-*.whl all
    mv all/torch/include $torch
    rm -rf all wheels
    for check in AT_CHECK TORCH_CHECK; do
        printf '%s\n' '#include <ATen/ATen.h>' '__global__ void twice(float *x) { x[threadIdx.x] *= 2; }' \
            "void run(at::Tensor x) { $check(x.is_cuda(), \"no\"); twice<<<1, 32>>>(x.data_ptr<float>()); }" >k.cu
        rm -f k.ptx
        if "$bin/nvcc" -w -std=c++17 -gencode=arch=compute_90,code=compute_90 -keep -Xcompiler -S -c -I$torch k.cu -o k.s >said.txt 2>&1; then
            echo "torch $torch, $check: $(grep -c '\.entry' k.ptx) kernel, $(grep -c '^_Z3runN2at6TensorE:' k.s) function"
        else
            echo "torch $torch, $check: $(grep error said.txt | tr '\n' ' ')"
        fi
    done
done | tee seen.txt
grep -q '^torch 1.4.0, AT_CHECK: 1 kernel, 1 function$' seen.txt
grep -q '^torch 1.4.0, TORCH_CHECK: 1 kernel, 1 function$' seen.txt
grep -q '^torch 1.5.0, AT_CHECK: k.cu(3): error: identifier "AT_CHECK" is undefined 1 error' seen.txt
grep -q '^torch 1.5.0, TORCH_CHECK: 1 kernel, 1 function$' seen.txt
