#!/usr/bin/env bash
# Builds headrace-engine:cpu and headrace-gateway:latest. From the environment, where set: PYTHON_IMAGE (base image),
# TORCH_INDEX, PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, PIP_CERT (CA bundle), DOCKER_BUILD_NETWORK.
set -euo pipefail
cd "$(dirname "$0")/.."
.venv/bin/python deploy/torch_wheel.py
if [ -n "${PIP_CERT:-}" ]; then cp "$PIP_CERT" deploy/ca/pip.crt; fi
options=()
for name in PYTHON_IMAGE TORCH_INDEX PIP_INDEX_URL PIP_EXTRA_INDEX_URL; do
    if [ -n "${!name:-}" ]; then options+=(--build-arg "$name"); fi
done
if [ -n "${DOCKER_BUILD_NETWORK:-}" ]; then options+=(--network "$DOCKER_BUILD_NETWORK"); fi
build() { docker build "${options[@]}" --tag "$1" --file "deploy/$2.Dockerfile" .; }

build headrace-gateway:latest gateway &
gateway=$!
failed=0
build headrace-engine:cpu engine || failed=1
wait "$gateway" || failed=1
exit "$failed"
