#!/usr/bin/env bash
# Builds the images, runs tests/compose with the Docker engine that answers, and says what each part took. Where no
# engine answers, DOCKER_START says what then:
#   1       start one for the time of the tests (root, Debian)
#   never   skip the tests
#   unset   skip the tests, which in CI counts as a failure where an engine could be started
# Where none can be started the tests are skipped, and the reason is printed. One that could be started and does not come up
# is a failure.
set -euo pipefail
cd "$(dirname "$0")/.."
report=""

skip() {
    echo "compose-test skipped: $1"
    exit 0
}

timed() {
    local begin=$SECONDS
    "${@:2}"
    report="$report$(printf '%-14s %4d s' "$1" $((SECONDS - begin)))\n"
}

compose_command() {
    if docker compose version >/dev/null 2>&1; then echo "docker compose"; else command -v docker-compose; fi
}

base_image() {
    PYTHON_IMAGE=${PYTHON_IMAGE:-$(deploy/base_image.sh)}
    export PYTHON_IMAGE
}

if ! docker info >/dev/null 2>&1; then
    [ "${DOCKER_START:-}" != never ] || skip "no Docker engine answers, and DOCKER_START=never"
    obstacle=$(deploy/docker_engine.sh obstacle)
    [ -z "$obstacle" ] || skip "no Docker engine answers, and none can be started here: $obstacle"
    if [ "${DOCKER_START:-}" != 1 ]; then
        [ "${CI:-}" != true ] || { echo "compose-test: no Docker engine answers; set DOCKER_START=1 to start one" >&2; exit 1; }
        skip "no Docker engine answers; DOCKER_START=1 starts one (root, Debian)"
    fi
    trap 'deploy/docker_engine.sh stop' EXIT
    timed "Docker engine" deploy/docker_engine.sh start
    export DOCKER_HOST=unix://$PWD/build/docker/docker.sock DOCKER_BUILD_NETWORK=host
    timed "base image" base_image
fi
COMPOSE=$(compose_command) || { echo "compose-test: neither \`docker compose\` nor docker-compose is installed" >&2; exit 1; }
export COMPOSE
$COMPOSE --file docker-compose.yml config --quiet
timed images deploy/images.sh
timed tests .venv/bin/pytest tests/compose -m compose
printf '\ncompose-test\n%b' "$report"
