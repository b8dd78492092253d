#!/bin/sh
# Inside the container, after the build: graft.sh WHEEL DEST. Copies into the wheel what it needs of this image,
# except what torch, its CUDA packages and the driver bring at run time: those would be loaded twice.
set -eu
wheel=$1
dest=$2

# The packages' own lists of files go out with the job: from them the farm tells what of this a user's torch brings.
mkdir -p "$BUILDFARM_JOB_DIR/site"
(cd "$BUILDFARM_SITE" && cp --parents ./*.dist-info/METADATA ./*.dist-info/RECORD "$BUILDFARM_JOB_DIR/site/")

set -- --exclude 'libcuda.so.*' --exclude 'libnvidia-*'
for folder in "$BUILDFARM_SITE/torch/lib" "$BUILDFARM_SITE/nvidia"; do
    for library in $(find "$folder" -name 'lib*.so*' -printf '%f\n' | sort -u); do
        set -- "$@" --exclude "$library"
    done
done
auditwheel repair "$@" --wheel-dir "$dest" "$wheel"
rm -rf "$BUILDFARM_ENVIRONMENT"
