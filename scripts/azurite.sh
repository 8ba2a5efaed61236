#!/usr/bin/env bash
# Finds or installs Azurite, Azure's Blob server for tests, and prints its program's path on stdout:
# the one in VENV or on PATH, else one from npm. Without npm it says what to install.
#   VENV  where npm installs it (default: .venv)
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/lib.sh
. scripts/lib.sh

version=3.35.0
folder=${VENV:-.venv}/azurite
program=$folder/node_modules/.bin/azurite-blob
if [ ! -x "$program" ] && ! command -v azurite-blob >/dev/null && command -v npm >/dev/null; then
  say "Installing Azurite with npm (a minute)"
  logged npm install --prefix "$folder" --no-audit --no-fund --loglevel=error "azurite@$version" || true
fi
found=$(command -v "$program" azurite-blob | head -n 1 || true)
if [ -z "$found" ]; then
  die "the tests of az:// need Azurite, and there is none here" \
    "Debian, Ubuntu:  sudo apt-get install npm, and run make again" \
    "Elsewhere:       npm install -g azurite@$version"
fi
realpath "$found"
