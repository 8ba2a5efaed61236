# Makes one virtual environment; shared by the set-up scripts. Source it, don't run it.
#   PYTHON  the interpreter to build on (default: python3, or the newest python3.N there is)

# begin_setup FOLDER: make sure that FOLDER is an empty or usable environment. Sets `venv`
# (absolute) and `venv_name` (as it was given), and sends logged output to a log in it.
begin_setup() {
  venv_name=$1
  mkdir -p "$venv_name"
  venv=$(cd "$venv_name" && pwd -P)
  log="$venv/setup.log"
  # One set-up of one environment at a time.
  exec 9<"$venv"
  if command -v flock >/dev/null; then
    flock 9
  fi
  # Variables in the caller's environment that would send packages elsewhere.
  unset PYTHONHOME PYTHONPATH PIP_TARGET PIP_PREFIX PIP_REQUIRE_VIRTUALENV
  export PIP_USER=0 PIP_NO_INPUT=1 PIP_DISABLE_PIP_VERSION_CHECK=1
  is_usable >/dev/null 2>&1 || make_environment
  : >"$log"
  touch "$venv/.started"
}

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
  say "Creating $venv_name (Python $version)"
  if [ -e "$venv/pyvenv.cfg" ]; then
    # The folder itself stays, because other set-ups wait on it.
    find "$venv" -mindepth 1 -delete
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
    die "$python -m venv $venv_name did not work" "Remove $venv_name and run make again."
}

# install_packages CONSTRAINTS GIGABYTES REQUIREMENT...
install_packages() {
  local constraints=$1 gigabytes=$2
  shift 2
  say "Installing packages in $venv_name (a minute or two the first time)"
  # Of twenty thousand files most are never imported; those that are, Python compiles once itself.
  install_by_uv -c "$constraints" "$@" ||
    logged "$venv/bin/python" -m pip install -q --no-compile -c "$constraints" "$@" ||
    die "pip could not install the packages in $venv_name" \
      "If it found no versions or could not connect: check the network, proxy and pip's configuration." \
      "If it found no space: the environment needs about $gigabytes GB." \
      "Then run make again; it goes on from where it stopped."
}

# install_by_uv ARGUMENT...: seconds where it has everything in its cache, for which it asks nobody.
# It knows nothing of pip's configuration: where that names an index, pip is asked next.
install_by_uv() {
  logged "$venv/bin/python" -m pip install -q --no-compile -c constraints.txt uv || return 1
  logged "$venv/bin/uv" pip install -q --offline --python "$venv/bin/python" "$@" ||
    logged "$venv/bin/uv" pip install -q --python "$venv/bin/python" "$@"
}

# need_commands NAME...: check that these are in the environment now.
need_commands() {
  local command
  for command in "$@"; do
    [ -x "$venv/bin/$command" ] ||
      die "$venv_name/bin/$command is missing after the installation" \
        "Remove $venv_name and run make again."
  done
}

# end_setup: leave a stamp that says where the environment is and has the time of the start, so that
# changes since then cause another set-up.
end_setup() {
  printf '%s\n' "$venv" >"$venv/.ready"
  touch -r "$venv/.started" "$venv/.ready"
  rm "$venv/.started"
}
