# The gateway. The build context is the top of the repository; `make images` builds it.
ARG PYTHON_IMAGE=python:3.11-slim

FROM ${PYTHON_IMAGE} AS builder
COPY deploy/ca/ /usr/local/share/ca-certificates/
RUN update-ca-certificates

# Empty index settings leave pip's own.
ARG PIP_INDEX_URL=""
ARG PIP_EXTRA_INDEX_URL=""
ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt \
    PIP_CONSTRAINT=/src/constraints.txt \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1
WORKDIR /src
RUN python -m venv /opt/pip && python -m venv --without-pip /opt/headrace
COPY constraints.txt deploy/third_party.py ./
COPY proto/pyproject.toml proto/
COPY client/pyproject.toml client/
COPY gateway/pyproject.toml gateway/
RUN python third_party.py proto/pyproject.toml client/pyproject.toml "gateway/pyproject.toml[otel]" >needed.txt \
    && /opt/pip/bin/pip --python /opt/headrace/bin/python install --quiet --no-compile -r needed.txt

# The imports compile what is used, and nothing else is compiled: the container cannot, since it writes nothing.
COPY LICENSE ./
COPY proto proto
COPY client client
COPY gateway gateway
RUN /opt/pip/bin/pip wheel --quiet --no-deps --wheel-dir built ./proto ./client ./gateway \
    && /opt/pip/bin/pip --python /opt/headrace/bin/python install --quiet --no-deps built/*.whl \
    && /opt/headrace/bin/python -c "import headrace_gateway.server, headrace_gateway.http.server, grpc_health.v1.health_pb2_grpc, uvloop, \
        opentelemetry.exporter.otlp.proto.grpc.trace_exporter"

FROM ${PYTHON_IMAGE}
# Volumes that are mounted there the first time take over their owner.
RUN useradd --uid 10001 --user-group --no-create-home headrace \
    && install -d -o headrace -g headrace /etc/headrace/secret /etc/headrace/keys /etc/headrace/metrics
COPY --from=builder /opt/headrace /opt/headrace
COPY deploy/access.py deploy/probe.py /opt/headrace/
ENV PATH=/opt/headrace/bin:$PATH
USER 10001:10001
EXPOSE 7070 7080
ENTRYPOINT ["headrace-gateway"]
