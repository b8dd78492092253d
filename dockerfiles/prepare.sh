#!/bin/sh
# Inside the container, before the build: the build's packages, exactly those of the lock, and the toolkit's links.
# BUILDFARM_* and UV_CACHE_DIR come from builder/wheels/container.py.
set -eu

# The environment lies inside the mounted uv cache because hard links do not cross mounts: half a second where
# copying torch and its CUDA into the container's layer takes fifty. A killed run's is replaced, or swept after two days.
environment=$BUILDFARM_ENVIRONMENT
find "$UV_CACHE_DIR" -maxdepth 1 -name 'buildfarm-*' -mtime +1 -exec rm -rf {} +
uv venv --no-config --clear --python "$(readlink -f "$BUILDFARM_PREFIX/bin/python")" "$environment"
rm -rf "$BUILDFARM_PREFIX"
ln -s "$environment" "$BUILDFARM_PREFIX"
uv pip install --no-config --no-deps --python "$BUILDFARM_PREFIX/bin/python" --requirements "$BUILDFARM_JOB_DIR/requirements.txt"

if [ -n "${BUILDFARM_TORCH_CUDA-}" ]; then
    got=$(sed -n "s/^cuda.*= '\(.*\)'.*/\1/p" "$BUILDFARM_SITE/torch/version.py")
    if [ "$got" != "$BUILDFARM_TORCH_CUDA" ]; then
        echo "error: the index gave a torch for CUDA ${got:-none} where CUDA $BUILDFARM_TORCH_CUDA was wanted" >&2
        exit 1
    fi
    # torch's cpp_extension looks for lib64 and links -lcudart; the wheels ship lib and a versioned file only.
    ln -sfn lib "$CUDA_HOME/lib64"
    ln -sf "libcudart.so.${BUILDFARM_TORCH_CUDA%%.*}" "$CUDA_HOME/lib/libcudart.so"
fi
