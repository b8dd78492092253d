#!/bin/sh
# Inside the container, after the build: graft.sh WHEEL DEST. Copies into the wheel what it needs of this image,
# except what torch, its CUDA packages and the driver bring at run time: those would be loaded twice.
set -eu
wheel=$1
dest=$2
sh "$BUILDFARM_JOB_DIR/objects.sh" stop
rm -f "$BUILDFARM_SITE/buildfarm.pth" # a path of the build's; the tests of the wheel are of another place

# The packages' own lists of files go out with the job: from them the farm tells what of this a user's torch brings.
mkdir -p "$BUILDFARM_JOB_DIR/site"
(cd "$BUILDFARM_SITE" && cp --parents ./*.dist-info/METADATA ./*.dist-info/RECORD "$BUILDFARM_JOB_DIR/site/")
chmod -R a+rwX "$BUILDFARM_JOB_DIR/site" "$BUILDFARM_JOB_DIR/objects" # the farm deletes it, and is another user

set -- --exclude 'libcuda.so.*' --exclude 'libnvidia-*'
for folder in "$BUILDFARM_SITE/torch/lib" "$BUILDFARM_SITE/nvidia"; do
    for library in $(find "$folder" -name 'lib*.so*' -printf '%f\n' | sort -u); do
        set -- "$@" --exclude "$library"
    done
done
auditwheel repair "$@" --wheel-dir "$dest" "$wheel"
sh "$BUILDFARM_JOB_DIR/bytecode.sh" keep || true # a quicker next time is not worth a wheel
[ -n "${BUILDFARM_KEEP_ENVIRONMENT-}" ] || rm -rf "$BUILDFARM_ENVIRONMENT"
