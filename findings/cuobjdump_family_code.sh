#!/bin/sh
# cuobjdump 13.5.37: --list-elf drops the suffix of family-specific code (sm_100f), but keeps the one of sm_100a.
#
# nvcc writes three kinds of machine code: sm_100, sm_100f (for one family of GPUs) and sm_100a (for compute capability 10.0
# alone). A script that asks `cuobjdump --list-elf` for the code of a library cannot tell sm_100f from sm_100.
#
# Seen: compiled for sm_100f: "k.1.sm_100.cubin"; compiled for sm_100a: "k.1.sm_100a.cubin".
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv env
env/bin/python -m pip install -q nvidia-cuda-nvcc==13.5.37 nvidia-nvvm==13.5.37 nvidia-cuda-crt==13.5.37 \
    nvidia-cuda-runtime==13.5.37 nvidia-cuda-cccl==13.3.5.0.6 nvidia-cuda-cuobjdump==13.5.37
bin=$(ls -d env/lib/python3*/site-packages/nvidia/cu13/bin)
echo '__global__ void twice(float *x) { x[threadIdx.x] *= 2.0f; }' >k.cu
for kind in 100f 100a; do
    "$bin/nvcc" -gencode "arch=compute_$kind,code=sm_$kind" -c k.cu -o "k$kind.o"
    "$bin/cuobjdump" --list-elf "k$kind.o" | tee "$kind.txt"
done
grep -q 'sm_100\.cubin' 100f.txt
grep -q 'sm_100a\.cubin' 100a.txt
