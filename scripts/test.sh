#!/usr/bin/env bash
# Runs both suites for `make test`: memwal's own is shown as it runs, Airflow's runs beside it and
# is shown afterwards. They share nothing. In most of Airflow's one process waits for another, so
# memwal's own uses the cores that are left idle, and both end sooner. Fails if either does.
#   MAKE         the make to run them with
#   PYTEST_ARGS  for both; it may leave nothing to run in one of them
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
suite=("${MAKE:-make}" --no-print-directory "NOTHING_SELECTED=${PYTEST_ARGS:+ok}")
log=$(mktemp)
airflow=
# make passes a TERM on to pytest, and what pytest has started ends with it.
trap '[ -z "$airflow" ] || kill "$airflow" 2>/dev/null || true; rm -f "$log"' EXIT

status=0
"${suite[@]}" test-airflow >"$log" 2>&1 &
airflow=$!
nice -n 5 "${suite[@]}" test-memwal || status=1
echo "--- Airflow's suite ---"
wait "$airflow" || status=1
airflow=
cat "$log"
exit "$status"
