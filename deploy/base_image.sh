#!/usr/bin/env bash
# Makes sure that the Docker engine has a base image, and prints its name: python:3.11-slim where it is there, else
# headrace-python:3.11, which is Debian 12 with its Python, made here (as root, with mmdebstrap) without any registry.
set -euo pipefail
standard=python:3.11-slim
ours=headrace-python:3.11

has() { docker image inspect "$1" >/dev/null 2>&1; }

make_ours() {
    mmdebstrap --quiet --variant=minbase --include=ca-certificates,python3,python3-venv --dpkgopt=force-unsafe-io \
        --customize-hook='ln -s python3 "$1/usr/bin/python"' bookworm - | docker import - "$ours" >/dev/null
}

if has "$standard"; then
    echo "$standard"
else
    has "$ours" || make_ours
    echo "$ours"
fi
