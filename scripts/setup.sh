#!/usr/bin/env bash
# Makes the virtual environment with memwal, Spark and the development tools, and finds or
# installs Java. The Makefile runs it; running it again is harmless.
#   PYTHON  the interpreter to build on (default: python3, or the newest python3.N there is)
#   VENV    where to build (default: .venv)
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/lib.sh
. scripts/lib.sh
# shellcheck source=scripts/venv.sh
. scripts/venv.sh

# Spark's scripts look for `python3` and `java` on PATH and trust JAVA_HOME blindly. In this
# environment they default to its own Python and to the Java that was found, so that
# $VENV/bin/spark-submit works by its path alone. PYSPARK_PYTHON and a JAVA_HOME that names a
# Java 17 or newer still win.
bind_spark() {
  local home=$1 conf
  if ! grep -q '^export PYSPARK_PYTHON=' "$venv/bin/find-spark-home"; then
    # shellcheck disable=SC2016
    sed -i '1a export PYSPARK_PYTHON="${PYSPARK_PYTHON:-$(cd "$(dirname "$0")" && pwd)/python}"' \
      "$venv/bin/find-spark-home"
  fi
  conf=$("$venv/bin/python" -c \
    'from importlib.util import find_spec; print(find_spec("pyspark").submodule_search_locations[0])')/conf
  mkdir -p "$conf"
  cat >"$conf/spark-env.sh" <<END
# Written by memwal's scripts/setup.sh.
if ! grep -Eqs '^JAVA_VERSION="(1[7-9]|[2-9][0-9])' "\${JAVA_HOME:-}/release"; then
  JAVA_HOME=$(printf %q "$home")
fi
END
}

begin_setup "${VENV:-.venv}"
install_packages constraints.txt 2 -e '.[spark,metrics,dev,release]'
need_commands memwal spark-submit
home=$(SETUP_LOG=$log scripts/java.sh)
bind_spark "$home"
say "Ready: $venv_name, Java in $home"
end_setup
