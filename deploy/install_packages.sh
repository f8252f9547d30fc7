#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# install_packages.sh [LIST...]: installs the Debian packages of the lists (default: packages.txt) that are missing.
# Works as root or through sudo; does nothing where nothing is missing.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

lists=("$@")
[[ ${#lists[@]} -gt 0 ]] || lists=(deploy/packages.txt)
mapfile -t wanted < <(grep -hv -e '^#' -e '^$' "${lists[@]}")
[[ ${#wanted[@]} -gt 0 ]] || die "no package is listed in ${lists[*]}"

command -v dpkg-query >/dev/null ||
  die "this is not Debian; install what ${lists[*]} name with the package manager that is here"

# dpkg-query fails where it does not know one of them; it lists the others all the same.
installed=$({ dpkg-query -W -f '${Package} ${db:Status-Status}\n' "${wanted[@]}" 2>/dev/null || true; } |
  sed -n 's/ installed$//p')
mapfile -t missing < <(printf '%s\n' "${wanted[@]}" | grep -vxF "$installed")
if [[ ${#missing[@]} == 0 ]]; then
  echo "all ${#wanted[@]} packages are installed"
  exit 0
fi

say "Installing ${#missing[@]} Debian packages: ${missing[*]}"
as_root=()
if [[ $EUID != 0 ]]; then
  command -v sudo >/dev/null ||
    die "root is needed to install packages and sudo is not there; as root: apt-get install ${missing[*]}"
  as_root=(sudo)
fi
apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get)
install=("${apt[@]}" install --yes --no-install-recommends "${missing[@]}")

# The package lists are fetched only where they are absent or name files that are gone.
if ! apt-cache show "${missing[@]}" >/dev/null 2>&1 || ! "${install[@]}"; then
  run "apt-get update" "${apt[@]}" update
  run "apt-get install" "${install[@]}"
fi
