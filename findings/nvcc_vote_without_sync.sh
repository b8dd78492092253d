#!/bin/sh
# nvcc 13.0.88 for sm_90: __shfl is an unknown name, but __ballot, __any and __all compile, and ptxas refuses what comes out.
#
# All of them lost their form without a mask with sm_70. nvcc calls __ballot only "deprecated", and the error names a line
# of a temporary PTX file: a search for the failing line of the source finds nothing.
#
# Seen: __shfl: 'identifier "__shfl" is undefined'; __ballot: "Instruction 'vote' without '.sync' is not supported on
# .target sm_70 and higher from PTX ISA version 6.4".
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv env
env/bin/python -m pip install -q nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 \
    nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85
bin=$(ls -d env/lib/python3*/site-packages/nvidia/cu13/bin)
for call in '__shfl(x[0], 1)' '__ballot(x[0])' '__any(x[0])' '__all(x[0])'; do
    echo "__global__ void k(int *x) { x[1] = $call; }" >k.cu
    if "$bin/nvcc" -arch=sm_90 -w -c k.cu -o k.o >said.txt 2>&1; then
        echo "$call compiles" && exit 1
    fi
    echo "$call: $(grep -m1 error said.txt)"
    case $call in
        __shfl*) grep -q 'identifier "__shfl" is undefined' said.txt ;;
        *) grep -q "Instruction 'vote' without '.sync' is not supported" said.txt ;;
    esac
done
