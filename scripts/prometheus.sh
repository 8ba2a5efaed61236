#!/usr/bin/env bash
# Finds or unpacks a Prometheus for the tests and prints its path on stdout: PROMETHEUS, else the
# one on PATH, else one from apt-get, with promtool beside it. Elsewhere it says what to install.
#   VENV  where Debian's package is unpacked; installing it would start a service (default: .venv)
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/lib.sh
. scripts/lib.sh

unpacked=${VENV:-.venv}/prometheus
find_prometheus() {
  command -v "${PROMETHEUS:-prometheus}" ||
    { [ -z "${PROMETHEUS:-}" ] && command -v "$unpacked/usr/bin/prometheus"; }
}

found=$(find_prometheus || true)
if [ -z "$found" ] && [ -z "${PROMETHEUS:-}" ] && command -v apt-get >/dev/null; then
  say "Unpacking Prometheus with apt-get"
  mkdir -p "$unpacked"
  apt_unpack "$unpacked" prometheus || true
  found=$(find_prometheus || true)
fi
if [ -z "$found" ]; then
  die "the tests of metrics need Prometheus, and there is none here${PROMETHEUS:+ (PROMETHEUS=$PROMETHEUS)}" \
    "Debian, Ubuntu:  sudo apt-get update, and run make again" \
    "Elsewhere:       install Prometheus 2.42 or newer, and export PROMETHEUS=<its program>"
fi
realpath "$found"
