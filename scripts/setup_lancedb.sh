#!/usr/bin/env bash
# Makes the virtual environment with clients of LanceDB and lance-context, which write to tables
# beside memwal in tests: each brings a Lance of its own. Running it again is harmless.
#   PYTHON        the interpreter to build on (default: python3, or the newest python3.N there is)
#   VENV_LANCEDB  where to build (default: .venv-lancedb)
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/lib.sh
. scripts/lib.sh
# shellcheck source=scripts/venv.sh
. scripts/venv.sh

begin_setup "${VENV_LANCEDB:-.venv-lancedb}"
install_packages constraints-lancedb.txt 0.9 lancedb lance-context
end_setup
