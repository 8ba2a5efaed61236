# Functions shared by the set-up scripts. Source it, don't run it.

log=${SETUP_LOG:-}
log_says_why=

# Progress goes to stderr, so that stdout stays free for results.
say() {
  printf '%s\n' "$*" >&2
}

# die WHAT ADVICE...: print the log's tail, what failed and what to do, and exit.
die() {
  if [ -n "$log_says_why" ]; then
    say "--- the end of $log ---"
    grep -v 'is ignored: it is neither' "$log" | tail -n 25 >&2 || true
    say "---"
  fi
  say "set-up failed: $1"
  shift
  for line in "$@"; do
    say "  $line"
  done
  exit 1
}

# logged COMMAND...: run it with its output in the log, if there is one.
logged() {
  if [ -z "$log" ]; then
    "$@" >&2
  elif ! "$@" >>"$log" 2>&1; then
    log_says_why=yes
    return 1
  fi
}

# can_apt: whether this user may install Debian packages.
can_apt() {
  [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null
}

# apt_locked COMMAND...: run it after an update of the package lists, if this user may make one.
apt_locked() {
  # dpkg refuses to work without sbin; a failed update may still leave usable lists.
  local -x PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin" DEBIAN_FRONTEND=noninteractive LC_ALL=C
  local options=(-q -y -o DPkg::Lock::Timeout=120) lock status=0
  # Two set-ups may run side by side, and apt-get does not wait for all of its own locks.
  exec {lock}</var/lib/apt
  if command -v flock >/dev/null; then
    flock "$lock"
  fi
  if can_apt; then
    logged apt-get "${options[@]}" update || true
  fi
  "$@" || status=$?
  exec {lock}<&-
  return $status
}

# apt_install PACKAGE...: install the first of them that this release has.
apt_install() {
  apt_locked install_first "$@"
}

install_first() {
  local package
  for package in "$@"; do
    if logged apt-get "${options[@]}" install --no-install-recommends "$package"; then
      return 0
    fi
  done
  return 1
}

# apt_unpack FOLDER PACKAGE: unpack the package in a folder; nothing is installed or started.
apt_unpack() {
  apt_locked unpack_into "$@"
}

unpack_into() {
  (cd "$1" && logged apt-get -q download "$2" && logged dpkg-deb -x "$2"_*.deb . && rm "$2"_*.deb)
}
