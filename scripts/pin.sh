#!/usr/bin/env bash
# Renews constraints.txt: resolves '.[spark,dev]' in a fresh environment and writes down what
# came out. Run it on the oldest supported Python: PYTHON=python3.11 scripts/pin.sh
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

say "Resolving '.[spark,dev]' (a minute or two)"
logged "$python" -m venv "$work/venv" || die "$python -m venv did not work" "Try another PYTHON."
logged "$work/venv/bin/python" -m pip install -q -e '.[spark,dev]' ||
  die "pip could not resolve or install '.[spark,dev]'" "The old constraints.txt is untouched."
{
  echo "# Every package of '.[spark,dev]', pinned. Renew with scripts/pin.sh"
  "$work/venv/bin/python" -m pip freeze --exclude-editable 2>>"$log"
} >"$work/constraints.txt"
# Names and versions only: a path or an address here would tie everyone to this machine.
if sed 1d "$work/constraints.txt" | grep -Ev '^[A-Za-z0-9._-]+==[A-Za-z0-9._!+]+$' >&2; then
  die "the lines above are not of the form name==version" "The old constraints.txt is untouched."
fi
[ "$(wc -l <"$work/constraints.txt")" -gt 1 ] || die "pip freeze listed nothing" "The old constraints.txt is untouched."

diff constraints.txt "$work/constraints.txt" >&2 && say "Nothing changed" && exit 0
cat "$work/constraints.txt" >constraints.txt
say "Wrote constraints.txt; now run make test"
