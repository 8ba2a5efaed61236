#!/usr/bin/env bash
# Finds or installs Spin and a C compiler for the formal models, and prints Spin's path on stdout:
# SPIN, else the one on PATH, else one from apt-get. Elsewhere it says what to install.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/lib.sh
. scripts/lib.sh

found=$(command -v "${SPIN:-spin}" || true)
if [ -z "$found" ] && [ -z "${SPIN:-}" ] && can_apt; then
  say "Installing Spin with apt-get"
  apt_install spin || true
  found=$(command -v spin || true)
fi
if ! command -v gcc >/dev/null && can_apt; then
  say "Installing a C compiler with apt-get"
  apt_install gcc || true
  apt_install libc6-dev || true
fi
if [ -z "$found" ] || ! command -v gcc >/dev/null; then
  die "the formal models need Spin and gcc, and they are not both here${SPIN:+ (SPIN=$SPIN)}" \
    "Debian, Ubuntu:  sudo apt-get install spin gcc libc6-dev" \
    "Elsewhere:       install both, and export SPIN=<its program>" \
    "Then run make again."
fi
printf '%s\n' "$found"
