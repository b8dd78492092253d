#!/bin/sh
# nvidia-cuda-nvcc and nvidia-nvvm 13.5.37 of the package index: a device link with -dlto fails, although every file is there.
#
# nvlink opens nvvm/lib64/libnvvm.so beside its own folder. The package nvidia-nvvm has this library as lib/libnvvm.so.4
# only. nvcc itself compiles, so the fault shows only at a link with -dlto, which torch adds to each CUDAExtension with
# dlink=True. With a link under the expected name, the same command works.
#
# Seen: "nvlink fatal : elfLink linker library load error"; after `ln -s`, exit status 0.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv env
env/bin/python -m pip install -q nvidia-cuda-nvcc==13.5.37 nvidia-nvvm==13.5.37 nvidia-cuda-crt==13.5.37 \
    nvidia-cuda-runtime==13.5.37 nvidia-cuda-cccl==13.3.5.0.6
toolkit=$(ls -d env/lib/python3*/site-packages/nvidia/cu13)
echo '__device__ float twice(float x) { return 2.0f * x; }' >twice.cu
echo 'extern __device__ float twice(float); __global__ void k(float *x) { x[0] = twice(x[0]); }' >k.cu
for name in twice k; do
    "$toolkit/bin/nvcc" -rdc=true -gencode arch=compute_90,code=lto_90 -c $name.cu -o $name.o
done
link() { "$toolkit/bin/nvcc" -dlink -dlto -arch=sm_90 twice.o k.o -o linked.o; }
if link >link.txt 2>&1; then
    echo "changed: nvlink finds libnvvm"
    exit 1
fi
grep "elfLink linker library load error" link.txt
mkdir -p "$toolkit/nvvm/lib64"
ln -s ../../lib/libnvvm.so.4 "$toolkit/nvvm/lib64/libnvvm.so"
link
ls linked.o
