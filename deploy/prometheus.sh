#!/bin/sh
# Unpacks Debian's Prometheus into build/prometheus, by which rules and metrics are tested, unless it is there. Nothing is
# installed or started. Fails where that is not possible.
set -eu
cd "$(dirname "$0")/.."
if command -v prometheus >/dev/null || [ -x build/prometheus/usr/bin/prometheus ]; then exit 0; fi
command -v apt-get >/dev/null
mkdir -p build/prometheus && cd build/prometheus
apt-get download -qq prometheus
dpkg-deb --extract prometheus_*.deb .
rm prometheus_*.deb
