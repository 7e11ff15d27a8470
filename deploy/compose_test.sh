#!/usr/bin/env bash
# Builds the images and runs tests/compose with the Docker engine that answers. Where none does, DOCKER_START=1 starts one
# for the time of the tests (root, Debian); else the tests are skipped, which in CI counts as a failure where an engine
# could be started.
set -euo pipefail
cd "$(dirname "$0")/.."

can_start() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null && unshare --mount --net true 2>/dev/null; }

skip() {
    echo "compose-test skipped: $1"
    if [ "${CI:-}" = true ] && can_start; then exit 1; fi
    exit 0
}

compose_command() {
    if docker compose version >/dev/null 2>&1; then echo "docker compose"; else command -v docker-compose; fi
}

if ! docker info >/dev/null 2>&1; then
    [ "${DOCKER_START:-}" = 1 ] || skip "no Docker engine answers; DOCKER_START=1 starts one (root, Debian)"
    can_start || skip "no Docker engine answers, and none can be started here: that takes root and mounts, on Debian"
    trap 'deploy/docker_engine.sh stop' EXIT
    deploy/docker_engine.sh start
    export DOCKER_HOST=unix://$PWD/build/docker/docker.sock DOCKER_BUILD_NETWORK=host
    PYTHON_IMAGE=$(deploy/base_image.sh)
    export PYTHON_IMAGE
fi
COMPOSE=$(compose_command) || skip "neither \`docker compose\` nor docker-compose is installed"
export COMPOSE
$COMPOSE --file docker-compose.yml config --quiet
deploy/images.sh
.venv/bin/pytest tests/compose -m compose
