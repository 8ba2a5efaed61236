#!/usr/bin/env bash
# Finds or installs a Java that Spark can run on (17 or newer) and prints its home on stdout.
# It can install one as root on Debian; elsewhere it says what to install.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/lib.sh
. scripts/lib.sh

# java_home JAVA: its home, if it is new enough and has the module that Spark loads
# (cut-down runtimes lack it).
java_home() {
  local settings version
  settings=$("$1" --add-modules=jdk.incubator.vector -XshowSettings:properties -version 2>&1) || return 1
  version=$(sed -n 's/^ *java\.specification\.version = //p' <<<"$settings")
  [ "${version%%[!0-9]*}" -ge 17 ] 2>/dev/null || return 1
  sed -n 's/^ *java\.home = //p' <<<"$settings"
}

# find_java: JAVA_HOME first, which may point nowhere; then PATH; then where Debian puts them.
find_java() {
  if [ -n "${JAVA_HOME:-}" ] && java_home "$JAVA_HOME/bin/java" >/dev/null; then
    printf '%s\n' "$JAVA_HOME"
    return 0
  fi
  local java
  for java in "$(command -v java || true)" /usr/lib/jvm/*/bin/java; do
    if [ -x "$java" ] && java_home "$java"; then
      return 0
    fi
  done
  return 1
}

home=$(find_java || true)
if [ -z "$home" ] && can_apt; then
  say "Installing Java with apt-get"
  mkdir -p /usr/share/man/man1 # slim images lack it, and Java's installation trips over that
  apt_install openjdk-17-jre-headless openjdk-21-jre-headless default-jre-headless ||
    die "apt-get could not install a Java runtime" \
      "Install Java 17 or newer by hand, then run make again."
  home=$(find_java || true)
fi
if [ -z "$home" ]; then
  die "Spark needs Java 17 or newer, and there is none here${JAVA_HOME:+ (JAVA_HOME=$JAVA_HOME)}" \
    "Debian 12, Ubuntu:  sudo apt-get install openjdk-17-jre-headless" \
    "Debian 13:          sudo apt-get install openjdk-21-jre-headless" \
    "Fedora:             sudo dnf install java-21-openjdk-headless" \
    "Without root:       unpack any full JDK of 17 or newer and export JAVA_HOME=<its folder>" \
    "Then run make again."
fi
printf '%s\n' "$home"
