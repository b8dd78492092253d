#!/bin/sh
# Inside the container, before the build: the build's packages, exactly those of the lock, and the toolkit's links.
# BUILDFARM_* come from builder/wheels/container.py.
set -eu

# The environment lies inside the mounted uv cache because hard links do not cross mounts: half a second where
# copying torch and its CUDA into the container's layer takes fifty. What killed runs left there is swept.
environment=$BUILDFARM_ENVIRONMENT
/opt/buildfarm/bin/python "$BUILDFARM_JOB_DIR/hold.py" "$environment"
sh "$BUILDFARM_JOB_DIR/packages.sh" venv --no-config --clear --python "$(readlink -f "$BUILDFARM_PREFIX/bin/python")" "$environment"
rm -rf "$BUILDFARM_PREFIX"
ln -s "$environment" "$BUILDFARM_PREFIX"
# By its own path: each file is linked by its full name, and every folder on the way is asked of the container's storage.
sh "$BUILDFARM_JOB_DIR/packages.sh" pip install --no-config --no-deps --python "$environment/bin/python" \
    --requirements "$BUILDFARM_JOB_DIR/requirements.txt"

if [ -n "${BUILDFARM_TORCH_CUDA-}" ]; then
    got=$(sed -n "s/^cuda.*= '\(.*\)'.*/\1/p" "$BUILDFARM_SITE/torch/version.py")
    if [ "$got" != "$BUILDFARM_TORCH_CUDA" ]; then
        echo "error: the index gave a torch for CUDA ${got:-none} where CUDA $BUILDFARM_TORCH_CUDA was wanted" >&2
        exit 1
    fi
fi
if [ -n "${BUILDFARM_LINK_TOOLKIT-}" ]; then
    # torch's cpp_extension looks for lib64 and links -lcudart; the wheels ship lib and a versioned file only.
    ln -sfn lib "$BUILDFARM_TOOLKIT/lib64"
    ln -sf "libcudart.so.${BUILDFARM_TORCH_CUDA%%.*}" "$BUILDFARM_TOOLKIT/lib/libcudart.so"
fi

sh "$BUILDFARM_JOB_DIR/bytecode.sh" take || true # Python compiles what is missing

# The build's Python takes its packages from a path that is the same for every Python: what torch says of its headers
# reaches the compilers' command lines and, by __FILE__, the objects.
cat > "$BUILDFARM_SITE/buildfarm.pth" << END
import os, sys; sys.path[:] = ["$BUILDFARM_OBJECTS/site" if os.path.realpath(p) == os.path.realpath("$BUILDFARM_SITE") else p for p in sys.path]
END
sh "$BUILDFARM_JOB_DIR/objects.sh" start
