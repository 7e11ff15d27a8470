# The engine service for CPUs. The build context is the top of the repository; `make images` builds it.
ARG PYTHON_IMAGE=python:3.11-slim

FROM ${PYTHON_IMAGE} AS builder
COPY deploy/ca/ /usr/local/share/ca-certificates/
# hadolint ignore=DL3008
RUN update-ca-certificates \
    && apt-get update \
    && apt-get install -y --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*

# Empty index settings leave pip's own. TORCH_INDEX counts where wheels/ has no wheel of torch.
ARG PIP_INDEX_URL=""
ARG PIP_EXTRA_INDEX_URL=""
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt \
    PIP_CONSTRAINT=/src/constraints.txt \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1
WORKDIR /src
RUN python -m venv /opt/pip && python -m venv --without-pip /opt/headrace
# Torch comes alone and from one source, so that no CUDA build of it can slip in.
COPY constraints.txt wheel[s] ./
RUN if ls torch-*.whl; then set -- --no-index --find-links .; \
    else set -- --index-url "${TORCH_INDEX:?names an index with CPU builds of torch}"; fi \
    && /opt/pip/bin/pip --python /opt/headrace/bin/python install --quiet --no-compile --no-deps "$@" torch \
    && rm -r /opt/headrace/lib/python3.*/site-packages/torch/include /opt/headrace/lib/python3.*/site-packages/torch/test
COPY deploy/third_party.py ./
COPY proto/pyproject.toml proto/
COPY engine_service/pyproject.toml engine_service/
RUN python third_party.py proto/pyproject.toml "engine_service/pyproject.toml[otel]" >needed.txt \
    && /opt/pip/bin/pip --python /opt/headrace/bin/python install --quiet --no-compile -r needed.txt

# The imports compile what is used, and nothing else is compiled: the container cannot, since it writes nothing.
COPY LICENSE ./
COPY proto proto
COPY csrc csrc
COPY engine_service engine_service
RUN /opt/pip/bin/pip wheel --quiet --no-deps --wheel-dir built ./proto ./engine_service \
    && /opt/pip/bin/pip --python /opt/headrace/bin/python install --quiet --no-deps built/*.whl \
    && /opt/headrace/bin/python -c "import headrace_engine.service.program.main, headrace_engine.backends.torch.runner, gguf.quants, \
        transformers.models.auto.tokenization_auto, opentelemetry.exporter.otlp.proto.grpc.trace_exporter"

FROM ${PYTHON_IMAGE}
RUN useradd --uid 10001 --user-group --home-dir /var/lib/headrace headrace \
    && install -d -o headrace -g headrace /var/lib/headrace /var/cache/headrace
COPY --from=builder /opt/headrace /opt/headrace
COPY deploy/probe.py /opt/headrace/probe.py
ENV PATH=/opt/headrace/bin:$PATH
USER 10001:10001
EXPOSE 7071
ENTRYPOINT ["headrace-engine"]
CMD ["--listen", "0.0.0.0:7071", "--state-dir", "/var/lib/headrace", "--model-root", "/models"]
