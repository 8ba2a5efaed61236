#!/usr/bin/env bash
# Makes the virtual environment with Airflow, memwal's provider and what their tests need. The
# Makefile runs it; running it again is harmless. Spark and the jobs have an environment of their
# own (setup.sh).
#   PYTHON        the interpreter to build on (default: python3, or the newest python3.N there is)
#   VENV_AIRFLOW  where to build (default: .venv-airflow)
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/lib.sh
. scripts/lib.sh
# shellcheck source=scripts/venv.sh
. scripts/venv.sh

begin_setup "${VENV_AIRFLOW:-.venv-airflow}"
install_packages constraints-airflow.txt 1.5 -e . -e './airflow_plugins[dev]'
need_commands airflow memwal pytest
say "Ready: $venv_name"
end_setup
