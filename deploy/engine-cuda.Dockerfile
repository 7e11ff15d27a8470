# The engine service for CUDA cards. The build context is the top of the repository:
#   docker build --file deploy/engine-cuda.Dockerfile --tag headrace-engine:cuda .
# The Python image's C library must not be newer than what nvcc of CUDA_IMAGE knows.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm
ARG CUDA_IMAGE=nvidia/cuda:13.0.2-devel-ubuntu24.04

# hadolint ignore=DL3006
FROM ${CUDA_IMAGE} AS cuda

FROM ${PYTHON_IMAGE} AS builder
COPY deploy/ca/ /usr/local/share/ca-certificates/
# hadolint ignore=DL3008
RUN update-ca-certificates \
    && apt-get update \
    && apt-get install -y --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
COPY --from=cuda /usr/local/cuda-13.0 /usr/local/cuda-13.0

# Empty index settings leave pip's own, whose torch is the build for CUDA.
ARG PIP_INDEX_URL=""
ARG PIP_EXTRA_INDEX_URL=""
ENV CUDACXX=/usr/local/cuda-13.0/bin/nvcc \
    PIP_CERT=/etc/ssl/certs/ca-certificates.crt \
    PIP_CONSTRAINT=/src/constraints.txt \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1
WORKDIR /src
RUN python -m venv /opt/pip && python -m venv --without-pip /opt/headrace
COPY constraints.txt deploy/third_party.py ./
COPY proto/pyproject.toml proto/
COPY engine_service/pyproject.toml engine_service/
RUN python third_party.py proto/pyproject.toml "engine_service/pyproject.toml[otel]" >needed.txt \
    && /opt/pip/bin/pip --python /opt/headrace/bin/python install --quiet --no-compile -r needed.txt "cupy-cuda13x>=14" \
    && /opt/headrace/bin/python -c "import torch; assert torch.version.cuda, 'the index gave a CPU build of torch'"

# The imports compile what is used, and nothing else is compiled: the container cannot, since it writes nothing.
COPY LICENSE ./
COPY proto proto
COPY csrc csrc
COPY engine_service engine_service
RUN /opt/pip/bin/pip wheel --quiet --no-deps --wheel-dir built ./proto \
    && /opt/pip/bin/pip wheel --quiet --no-deps --wheel-dir built --config-settings=cmake.define.CORE_CUDA=ON ./engine_service \
    && /opt/pip/bin/pip --python /opt/headrace/bin/python install --quiet --no-deps built/*.whl \
    && /opt/headrace/bin/python -c "import headrace_engine.service.program.main, headrace_engine.backends.torch.runner, \
        headrace_engine.backends.cuda.runner, gguf.quants, transformers.models.auto.tokenization_auto, \
        opentelemetry.exporter.otlp.proto.grpc.trace_exporter"

FROM ${PYTHON_IMAGE}
RUN useradd --uid 10001 --user-group --home-dir /var/lib/headrace headrace \
    && install -d -o headrace -g headrace /var/lib/headrace /var/cache/headrace
COPY --from=builder /opt/headrace /opt/headrace
COPY deploy/probe.py /opt/headrace/probe.py
ENV PATH=/opt/headrace/bin:$PATH \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 10001:10001
EXPOSE 7071
ENTRYPOINT ["headrace-engine"]
CMD ["--listen", "0.0.0.0:7071", "--state-dir", "/var/lib/headrace", "--model-root", "/models"]
