#!/usr/bin/env bash
# Makes the virtual environment for `make test-next`: all that is pinned, but the newest pylance that
# the index has, released or not; and within it another one with the newest LanceDB and lance-context.
# Running it again brings both up to date.
#   PYTHON     the interpreter to build on (default: python3, or the newest python3.N there is)
#   VENV_NEXT  where to build (default: .venv-next)
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/lib.sh
. scripts/lib.sh
# shellcheck source=scripts/venv.sh
. scripts/venv.sh

begin_setup "${VENV_NEXT:-.venv-next}"
install_packages constraints.txt 2 -e '.[spark,metrics,dev]'
# A bound of >=0a0 lets in pre-releases of this package alone.
pip=(-m pip install -q --no-compile --upgrade)
logged "$venv/bin/python" "${pip[@]}" 'pylance>=0a0' 'lance-namespace>=0a0' ||
  die "pip could not install the newest pylance in $venv_name" "Remove $venv_name and run make again."
lancedb="$venv/lancedb"
if [ -x "$lancedb/bin/python" ] || logged "$venv/bin/python" -m venv "$lancedb"; then
  if logged "$lancedb/bin/python" "${pip[@]}" 'lancedb>=0a0' 'lance-context>=0a0'; then
    touch "$lancedb/.ready"
  else
    say "skipped: LanceDB and lance-context can't be installed here: $(grep ERROR "$log" | tail -1)"
  fi
fi
end_setup
