# The worker: coordinator, searches, builds and measurements on one machine.
# --build-arg VARIANT=cuda adds the packages that compile and run kernels on NVIDIA GPUs.
ARG BASE=debian:trixie-20251117-slim
ARG VARIANT=cpu

FROM ${BASE} AS builder
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3-venv \
    && rm -rf /var/lib/apt/lists/*
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_NO_INPUT=1 PIP_PYTHON=/opt/tuner/bin/python
RUN python3 -m venv /opt/pip && python3 -m venv --without-pip /opt/tuner
WORKDIR /src
COPY constraints.txt docker/worker-requirements.txt ./
RUN /opt/pip/bin/pip install --only-binary :all: -c constraints.txt -r worker-requirements.txt \
    && find /opt/tuner -name tests -type d -prune -exec rm -rf {} +

FROM builder AS cuda-builder
COPY docker/cuda-requirements.txt ./
# TVM looks for CCCL next to CUDA's own headers. Static libraries, a second NVRTC and the C++
# sources of the bindings are 190 MB that nothing reads.
RUN /opt/pip/bin/pip install --only-binary :all: --prefix /cuda -r cuda-requirements.txt \
    && ln -s "$(cd /cuda && echo lib/python3*/site-packages/nvidia/cu13)" /cuda/cuda \
    && ln -s cccl/cub cccl/cuda cccl/thrust /cuda/cuda/include/ \
    && rm /cuda/cuda/lib/*.a /cuda/cuda/lib/*.alt.* \
    && find /cuda -name '*.cpp' -delete

FROM builder AS code
COPY . .
# Separate from the dependencies, so that a change of the tuner is a layer of one megabyte.
RUN /opt/pip/bin/pip install --no-deps --prefix /ours .

FROM ${BASE} AS cpu
# TVM generates machine code itself; cc links it into loadable libraries.
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev python3 \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 10001 tuner \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /data tuner-worker \
    && install -d -o 10001 -g 10001 /data /data/archives /run/tuner \
    && install -d -o 10002 -g 10001 -m 2775 /data/uploads
COPY --from=builder /opt/tuner /opt/tuner

FROM cpu AS cuda
COPY --from=cuda-builder /cuda /opt/tuner
# The driver, libcuda.so.1, comes from the machine: NVIDIA's container toolkit mounts it.
ENV CUDA_PATH=/opt/tuner/cuda \
    LD_LIBRARY_PATH=/opt/tuner/cuda/lib \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    NVIDIA_VISIBLE_DEVICES=all

FROM ${VARIANT}
COPY --from=code /ours /opt/tuner
ARG VARIANT
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="subgraph-tuner-worker" \
      org.opencontainers.image.description="Subgraph Tuner: worker, ${VARIANT}" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
ENV PATH=/opt/tuner/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    TUNER_DATA_DIR=/data
WORKDIR /data
USER 10001:10001
VOLUME /data
# The database has the time at which this machine's worker was last seen. The check runs rarely and
# at the lowest priority, because it disturbs measurements.
HEALTHCHECK --interval=60s --timeout=20s --start-period=60s --retries=2 \
    CMD ["nice", "-n", "19", "python", "-P", "-m", "tuner.service.alive"]
CMD ["tuner", "worker"]
