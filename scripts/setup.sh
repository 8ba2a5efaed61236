#!/usr/bin/env bash
# Makes the virtual environment with memwal, Spark and the development tools in it, and
# makes sure of Java. The Makefile runs it; running it again is harmless.
#   PYTHON  the interpreter to build on (default: python3, or the newest python3.N there is)
#   VENV    where to build (default: .venv)
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
mkdir -p "${VENV:=.venv}"
venv=$(cd "$VENV" && pwd -P)
export SETUP_LOG="$venv/setup.log"
# shellcheck source=scripts/lib.sh
. scripts/lib.sh

# One set-up at a time in one checkout.
exec 9<.
if command -v flock >/dev/null; then
  flock 9
fi

# Things in the caller's environment that would send packages elsewhere.
unset PYTHONHOME PYTHONPATH PIP_TARGET PIP_PREFIX PIP_REQUIRE_VIRTUALENV
export PIP_USER=0 PIP_NO_INPUT=1 PIP_DISABLE_PIP_VERSION_CHECK=1

is_new_enough() {
  "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

find_python() {
  local python candidates=("${PYTHON:-python3}")
  if [ "${candidates[0]}" = python3 ]; then
    candidates+=(python3.14 python3.13 python3.12 python3.11)
  fi
  for python in "${candidates[@]}"; do
    if is_new_enough "$python"; then
      printf '%s\n' "$python"
      return 0
    fi
  done
  return 1
}

# An environment that was copied from elsewhere, or whose interpreter is gone, is made anew.
is_usable() {
  is_new_enough "$venv/bin/python" &&
    grep -qF "$venv" "$venv/bin/activate" &&
    "$venv/bin/python" -m pip --version
}

make_environment() {
  local python version
  python=$(find_python) ||
    die "${PYTHON:-python3} is missing or older than Python 3.11" \
      "Install Python 3.11 or newer, or name one: make setup PYTHON=/path/to/python3.12"
  version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  say "Creating $VENV (Python $version)"
  if [ -e "$venv/pyvenv.cfg" ]; then
    rm -rf "$venv"
    mkdir -p "$venv"
  fi
  : >"$log"
  if ! "$python" -c 'import ensurepip, venv' 2>>"$log" && can_apt; then
    say "Installing Python's venv module with apt-get"
    apt_install "python$version-venv" python3-venv || true
  fi
  "$python" -c 'import ensurepip, venv' 2>>"$log" ||
    die "$python cannot make virtual environments: its venv or ensurepip module is missing" \
      "Debian, Ubuntu:  sudo apt-get install python$version-venv" \
      "Or name another Python: make setup PYTHON=/path/to/python3" \
      "Then run make again."
  logged "$python" -m venv "$venv" ||
    die "$python -m venv $VENV did not work" "Remove $VENV and run make again."
}

install_packages() {
  say "Installing packages (a minute or two the first time)"
  logged "$venv/bin/python" -m pip install -q -c constraints.txt -e '.[spark,dev]' ||
    die "pip could not install the packages" \
      "If it found no versions or could not connect: check the network, proxy and pip's configuration." \
      "If it found no space: the environment needs about 2 GB." \
      "Then run make again; it goes on from where it stopped."
  for command in memwal spark-submit; do
    [ -x "$venv/bin/$command" ] ||
      die "$VENV/bin/$command is missing after the installation" "Remove $VENV and run make again."
  done
}

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

is_usable >/dev/null 2>&1 || make_environment
: >"$log"
touch "$venv/.started"
install_packages
home=$(scripts/java.sh)
bind_spark "$home"
say "Ready: $VENV, Java in $home"

# The stamp says where the environment is, and is as old as the start: what changed since
# then is set up again.
printf '%s\n' "$venv" >"$venv/.ready"
touch -r "$venv/.started" "$venv/.ready"
rm "$venv/.started"
