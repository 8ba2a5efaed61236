#!/usr/bin/env bash
# Renews constraints.txt, constraints-airflow.txt and constraints-lancedb.txt: resolves the
# requirements of each environment in a fresh one, and writes down the result. Run it on the oldest
# supported Python: PYTHON=python3.11 scripts/pin.sh [constraints.txt|…]
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export SETUP_LOG="$work/pin.log"
# shellcheck source=scripts/lib.sh
. scripts/lib.sh

python=${PYTHON:-python3}
"$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' ||
  say "note: pins are made on Python 3.11, this is $("$python" --version 2>&1)"

# pin FILE TITLE REQUIREMENT...: write what the requirements resolve to today.
pin() {
  local file=$1 title=$2 untouched="The old $1 is untouched."
  shift 2
  say "Resolving $title (a minute or two)"
  logged "$python" -m venv "$work/$file.venv" ||
    die "$python -m venv did not work" "Try another PYTHON."
  logged "$work/$file.venv/bin/python" -m pip install -q "$@" ||
    die "pip could not resolve or install $title" "$untouched"
  {
    echo "# Every package of $title, pinned. Renew with scripts/pin.sh"
    "$work/$file.venv/bin/python" -m pip freeze --exclude-editable 2>>"$log"
  } >"$work/$file"
  # Names and versions only: a path or an address here would tie everyone to this machine.
  if sed 1d "$work/$file" | grep -Ev '^[A-Za-z0-9._-]+==[A-Za-z0-9._!+]+$' >&2; then
    die "the lines above are not of the form name==version" "$untouched"
  fi
  [ "$(wc -l <"$work/$file")" -gt 1 ] || die "pip freeze listed nothing" "$untouched"
  if diff "$file" "$work/$file" >&2; then
    say "Nothing changed in $file"
  else
    cat "$work/$file" >"$file"
    say "Wrote $file; now run make test"
  fi
}

case ${1:-all} in
all | constraints.txt) pin constraints.txt "'.[spark,metrics,dev,release]'" -e '.[spark,metrics,dev,release]' ;;&
all | constraints-airflow.txt)
  pin constraints-airflow.txt "memwal and './airflow_plugins[dev]'" -e . -e './airflow_plugins[dev]'
  ;;&
all | constraints-lancedb.txt) pin constraints-lancedb.txt "lancedb and lance-context" lancedb lance-context ;;&
all | constraints.txt | constraints-airflow.txt | constraints-lancedb.txt) ;;
*) die "$1: no such file of pins" ;;
esac
