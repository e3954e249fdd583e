# The API: REST, pages, event streams. It contains neither TVM nor a compiler.
ARG BASE=debian:trixie-20251117-slim

FROM ${BASE} AS builder
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3-venv \
    && rm -rf /var/lib/apt/lists/*
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_NO_INPUT=1 PIP_PYTHON=/opt/tuner/bin/python
RUN python3 -m venv /opt/pip && python3 -m venv --without-pip /opt/tuner
WORKDIR /src
COPY constraints.txt docker/api-requirements.txt ./
# Only Plotly's JavaScript is served; the rest of Plotly is removed.
RUN /opt/pip/bin/pip install --only-binary :all: -c constraints.txt -r api-requirements.txt \
    && find /opt/tuner -name tests -type d -prune -exec rm -rf {} + \
    && cd /opt/tuner/lib/python3*/site-packages/plotly \
    && rm -rf graph_objs labextension validators
COPY . .
# Separate from the dependencies, so that a change of the tuner is a layer of one megabyte.
RUN /opt/pip/bin/pip install --no-deps --prefix /ours .

FROM ${BASE}
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3 \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 10001 tuner \
    && useradd --uid 10002 --gid 10001 --no-create-home --home-dir /data tuner-api \
    && install -d -o 10002 -g 10001 /data /data/tmp \
    && install -d -o 10002 -g 10001 -m 2775 /data/uploads \
    && install -d -o 10001 -g 10001 /data/archives
COPY --from=builder /opt/tuner /opt/tuner
COPY --from=builder /ours /opt/tuner
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="subgraph-tuner-api" \
      org.opencontainers.image.description="Subgraph Tuner: REST API and dashboard" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
ENV PATH=/opt/tuner/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    TUNER_DATA_DIR=/data
WORKDIR /data
# Another user than the worker's, in its group: it owns uploads, and reads archives.
USER 10002:10001
VOLUME ["/data/uploads", "/data/archives", "/data/tmp"]
EXPOSE 8080
# /readyz checks the database too. -I and -S skip the site module: 40 ms of CPU.
HEALTHCHECK --interval=15s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python3", "-I", "-S", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8080/readyz', timeout=4)"]
CMD ["python", "-P", "-m", "api", "--host", "0.0.0.0", "--port", "8080"]
