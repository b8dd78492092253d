#!/bin/sh
# nvcc 13.5.37: with --concat, a fat binary for several architectures has one entry of a kind that older readers do not know.
#
# The section .nv_fatbin holds regions with a header (magic 0xBA55ED50) and entries; the first 16 bits of an entry are
# its kind: 1 PTX, 2 machine code. Without --concat, code for three architectures makes three entries of kind 2. With
# --concat (new in nvcc 13.4) the code for sm_100 and sm_120 lies in one entry of kind 256, and the code for sm_90 keeps an
# entry of its own. A reader that skips unknown kinds sees a library for sm_90 alone, and no sign that it missed something.
#
# Seen: without --concat: [2, 2, 2]; with --concat: [2, 256].
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv env
env/bin/python -m pip install -q nvidia-cuda-nvcc==13.5.37 nvidia-nvvm==13.5.37 nvidia-cuda-crt==13.5.37 \
    nvidia-cuda-runtime==13.5.37 nvidia-cuda-cccl==13.3.5.0.6
nvcc=$(ls env/lib/python3*/site-packages/nvidia/cu13/bin/nvcc)
echo '__global__ void twice(float *x) { x[threadIdx.x] *= 2.0f; }' >k.cu
for option in "" --concat; do
    "$nvcc" $option -gencode arch=compute_90,code=sm_90 -gencode arch=compute_100,code=sm_100 \
        -gencode arch=compute_120,code=sm_120 -c k.cu -o "k$option.o"
done
python3 - <<'PYTHON'
import pathlib
import struct


def kinds(name):
    data = pathlib.Path(name).read_bytes()
    found, start = [], data.find(struct.pack("<I", 0xBA55ED50))
    while start >= 0:
        header, size = struct.unpack_from("<HQ", data, start + 6)
        at, end = start + header, start + header + size
        while at < end:
            length, payload = struct.unpack_from("<IQ", data, at + 4)
            found += struct.unpack_from("<H", data, at)
            at += length + payload
        start = data.find(struct.pack("<I", 0xBA55ED50), end)
    return found


plain, concatenated = kinds("k.o"), kinds("k--concat.o")
print("without --concat:", plain, "with --concat:", concatenated)
assert plain == [2, 2, 2], plain
assert concatenated == [2, 256], concatenated
PYTHON
