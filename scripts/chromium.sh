#!/usr/bin/env bash
# Finds or installs a Chromium for the browser tests and prints its path on stdout: CHROMIUM, else
# the one on PATH, else one from apt-get. Where none is possible it says what to install.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/lib.sh
. scripts/lib.sh

find_chromium() {
  if [ -n "${CHROMIUM:-}" ]; then
    command -v "$CHROMIUM"
    return
  fi
  command -v chromium || command -v chromium-browser || command -v google-chrome
}

found=$(find_chromium || true)
if [ -z "$found" ] && [ -z "${CHROMIUM:-}" ] && can_apt; then
  say "Installing Chromium with apt-get"
  # Ubuntu has no such package, only a snap, which is left to the user to install.
  apt_install chromium || true
  found=$(find_chromium || true)
fi
if [ -z "$found" ]; then
  die "the browser tests need Chromium, and there is none here${CHROMIUM:+ (CHROMIUM=$CHROMIUM)}" \
    "Debian:     sudo apt-get install chromium" \
    "Elsewhere:  install Chromium or Chrome, and export CHROMIUM=<its program>" \
    "Then run make again."
fi
printf '%s\n' "$found"
