#!/usr/bin/env bash
# Starts a Docker engine for tests, with all that it keeps below build/docker, or ends it again. Usage:
# docker_engine.sh start|stop. As root on Debian; `start` installs what is missing.
# It stays out of the machine's way: no default bridge, no firewall rules, no forwarding. Containers of a compose network
# reach one another and publish ports all the same; builds reach the outside with `--network host`.
set -euo pipefail
cd "$(dirname "$0")/.."
home=$PWD/build/docker
export DOCKER_HOST=unix://$home/docker.sock

install_packages() {
    local missing=()
    for pair in dockerd:docker.io docker-compose:docker-compose iptables:iptables mmdebstrap:mmdebstrap; do
        command -v "${pair%%:*}" >/dev/null || missing+=("${pair##*:}")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    apt-get update -qq
    # RUNLEVEL keeps the packages from starting an engine of their own.
    RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "${missing[@]}" >/dev/null
}

running() {
    [ -f "$home/pid" ] && [ "$(ps -o comm= -p "$(cat "$home/pid")")" = dockerd ]
}

start() {
    install_packages
    mkdir -p "$home"
    running || setsid dockerd --data-root "$home/data" --exec-root "$home/exec" --host "$DOCKER_HOST" --pidfile "$home/pid" \
        --bridge=none --iptables=false --ip6tables=false --ip-masq=false --ip-forward=false >"$home/log" 2>&1 </dev/null &
    for _ in $(seq 150); do
        if docker info >/dev/null 2>&1; then return; fi
        sleep 0.2
    done
    echo "headrace: the Docker engine did not start; the end of $home/log:" >&2
    tail -n 5 "$home/log" >&2
    return 1
}

stop() {
    running || return 0
    local pid
    pid=$(cat "$home/pid")
    kill "$pid"
    timeout 60 tail --pid="$pid" -f /dev/null
    # The engine leaves a mount behind, which would keep the folder from being removed.
    grep -F " $home/" /proc/mounts | cut -d ' ' -f 2 | sort --reverse | xargs --no-run-if-empty umount
}

"$1"
