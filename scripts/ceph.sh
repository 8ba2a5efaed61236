#!/usr/bin/env bash
# Finds or installs Ceph's S3 gateway and what it needs, for `make test-ceph`: on PATH, else with
# apt-get. Where neither is possible it says what to install.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/lib.sh
. scripts/lib.sh

missing=()
for package in radosgw ceph-mon ceph-osd ceph-common; do
  program=${package/-common/}
  command -v "$program" >/dev/null || missing+=("$package")
done
for package in "${missing[@]}"; do
  can_apt || break
  say "Installing $package with apt-get"
  apt_install "$package" || true
done
command -v radosgw ceph-mon ceph-osd ceph >/dev/null && exit
die "there is no Ceph here" \
  "Debian, Ubuntu:  sudo apt-get install radosgw ceph-mon ceph-osd ceph-common"
