#!/usr/bin/env bash
# Starts a Docker engine for tests, with all that it keeps below build/docker, and ends it again. Usage:
# docker_engine.sh obstacle|start|stop. `obstacle` prints why none can be started here, and nothing where one can.
# `start` installs what is missing from Debian's packages, which stay; nothing else is left behind by `stop` but
# build/docker/data, the images. It keeps out of the machine's way: no default bridge, no firewall rules, no forwarding.
# Containers of a compose network reach one another and publish ports all the same; builds reach the outside with
# `--network host`.
set -euo pipefail
cd "$(dirname "$0")/.."
home=$PWD/build/docker
export DOCKER_HOST=unix://$home/docker.sock

obstacle() {
    if [ "$(id -u)" != 0 ]; then
        echo "that takes root"
    elif ! command -v apt-get >/dev/null; then
        echo "that takes Debian's packages"
    elif ! unshare --mount --net true 2>/dev/null; then
        echo "root may not make mounts and networks here"
    elif ! makes_control_groups; then
        echo "root may not make control groups here"
    fi
}

makes_control_groups() {
    local probe=/sys/fs/cgroup
    [ ! -d $probe/devices ] || probe=$probe/devices
    probe=$probe/headrace-probe-$$
    mkdir "$probe" 2>/dev/null && rmdir "$probe"
}

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
    [ -f "$home/pid" ] && [ "$(cat "/proc/$(cat "$home/pid")/comm" 2>/dev/null)" = dockerd ]
}

answers() { docker info >/dev/null 2>&1; }

start() {
    install_packages
    mkdir -p "$home"
    local pid deadline=$((SECONDS + 60))
    if running; then pid=$(cat "$home/pid"); else launch; fi
    until answers; do
        if [ "$SECONDS" -ge "$deadline" ] || [ ! -d "/proc/$pid" ]; then fail; fi
        sleep 0.2
    done
}

launch() {
    setsid dockerd --data-root "$home/data" --exec-root "$home/exec" --host "$DOCKER_HOST" --pidfile "$home/pid" \
        --bridge=none --iptables=false --ip6tables=false --ip-masq=false --ip-forward=false >"$home/log" 2>&1 </dev/null &
    pid=$!
}

fail() {
    echo "headrace: the Docker engine did not start; the end of $home/log:" >&2
    tail -n 5 "$home/log" >&2
    exit 1
}

stop() {
    running || return 0
    local pid
    pid=$(cat "$home/pid")
    # Nothing is left by tests that ran to their end. Those that were cut leave containers and bridges.
    if answers; then
        docker ps --all --quiet | xargs --no-run-if-empty docker rm --force --volumes >/dev/null
        docker network prune --force >/dev/null
    fi
    kill "$pid"
    timeout 60 tail --pid="$pid" -f /dev/null || kill -KILL "$pid"
    # The engine leaves empty control groups behind, and a mount, which would keep the folder from being removed.
    rmdir /sys/fs/cgroup/docker /sys/fs/cgroup/*/docker 2>/dev/null || true
    grep -F " $home/" /proc/mounts | cut -d ' ' -f 2 | sort --reverse | xargs --no-run-if-empty umount || true
}

"$1"
