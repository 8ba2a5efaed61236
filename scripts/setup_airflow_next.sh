#!/usr/bin/env bash
# Makes the virtual environment for tests/airflow on Airflow's newest pre-release; running it again
# is harmless. Ends with 3 when there is none to be had here that is newer than the pinned release.
#   PYTHON             the interpreter to build on (default: python3, or the newest python3.N there is)
#   VENV_AIRFLOW_NEXT  where to build (default: .venv-airflow-next)
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/lib.sh
. scripts/lib.sh
# shellcheck source=scripts/venv.sh
. scripts/venv.sh

pinned=$(sed -n 's/^apache-airflow==//p' constraints-airflow.txt)
begin_setup "${VENV_AIRFLOW_NEXT:-.venv-airflow-next}"
# A pre-release pins its own parts. The other pins hold as far as it leaves them.
constraints=$(mktemp)
trap 'rm -f "$constraints"' EXIT
grep -v '^apache-airflow' constraints-airflow.txt >"$constraints"
wanted=("apache-airflow>$pinned,>=0a0,<4" -e . -e './airflow_plugins[dev]')
say "Installing Airflow's newest pre-release in $venv_name (a minute or two the first time)"
pip=("$venv/bin/python" -m pip install -q --no-compile --upgrade)
if ! logged "${pip[@]}" -c "$constraints" "${wanted[@]}" && ! logged "${pip[@]}" "${wanted[@]}"; then
  say "skipped: no Airflow newer than $pinned can be installed here: $(grep ERROR "$log" | tail -1)"
  exit 3
fi
need_commands airflow memwal pytest
say "Ready: $venv_name, Airflow $("$venv/bin/airflow" version)"
end_setup
