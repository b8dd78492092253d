#!/bin/sh
# packages.sh ARGUMENT...: uv on the cache that all builds share. What is written there is always the build user's, also
# in a container of root (a source's before-all wants one): files of root, that user could neither link nor replace.
set -eu
set -- env UV_CACHE_DIR="$BUILDFARM_PACKAGES" uv "$@"
if [ "$(id -u)" -eq 0 ]; then
    set -- setpriv --reuid=1000 --regid=1000 --clear-groups "$@"
fi
exec "$@"
