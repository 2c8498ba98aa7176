# shellcheck shell=bash
# What the scripts share: where things are, and what a machine must have. Sourced by bash with `set -euo pipefail`.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck disable=SC2034 # for those who source this file
build=$root/build

say() { printf '%s\n' "$*" >&2; }
die() { say "${0##*/}: $*"; exit 1; }

# This Debian's mirror, as apt has it; it has the other releases too. Empty where apt has none.
debian_mirror() {
  local codename
  codename=$(. /etc/os-release && echo "${VERSION_CODENAME-}")
  # shellcheck disable=SC2016 # the dollars are apt's
  apt-get indextargets --format '$(SITE) $(RELEASE)' 'Created-By: Packages' |
    awk -v codename="$codename" '$2 == codename && !found++ { print $1 }'
}

# need PACKAGE=TEST...: make sure of Debian packages. TEST is a command, an absolute path, or python:MODULE, that is there
# when the package is. What is missing is installed by root on Debian; elsewhere it is named and the script stops.
need() {
  local item package probe missing=()
  for item; do
    package=${item%%=*} probe=${item#*=}
    has "$probe" || missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  if ! command -v apt-get >/dev/null; then
    die "this system is not Debian; install what Debian calls: ${missing[*]}"
  elif [ "$(id -u)" != 0 ]; then
    die "not root; install first: apt-get install ${missing[*]}"
  fi
  say "installing ${missing[*]}"
  local log=$build/apt.log
  mkdir -p "$build"
  if ! apt_install "${missing[@]}" >"$log" 2>&1; then
    # the lists of a fresh machine are empty or old
    { apt-get -q update && apt_install "${missing[@]}"; } >>"$log" 2>&1 ||
      { tail -n 20 "$log" >&2; die "apt-get could not install ${missing[*]}; all it said is in $log"; }
  fi
}

# No daemon starts because its package is installed: tests start private ones, and a person decides about the others.
apt_install() ( # a subshell, for its trap
  policy=/usr/sbin/policy-rc.d
  if [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
  fi
  DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends "$@"
)

has() {
  case $1 in
    /*) [ -e "$1" ] ;;
    python:*) /usr/bin/python3 -c "import ${1#python:}" 2>/dev/null ;;
    *) PATH=$PATH:/usr/sbin:/sbin command -v "$1" >/dev/null ;;
  esac
}

need_python() {
  need python3=/usr/bin/python3
  /usr/bin/python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    die "/usr/bin/python3 is $(/usr/bin/python3 --version); gpuhook needs Python 3.11 or newer"
}

# What real containers with the simulated driver need; Debian's names. static: a busybox that needs no libraries.
need_containers() {
  need runc=runc gcc=gcc libc6-dev=/usr/include/stdio.h binutils=readelf busybox-static=busybox \
    util-linux=unshare mount=mount libc-bin=/sbin/ldconfig
  if ldd "$(command -v busybox)" >/dev/null 2>&1; then
    need busybox-static=/usr/share/doc/busybox-static
  fi
}

# Container engines, for tests/engines.
need_engines() {
  need docker.io=/usr/sbin/dockerd containerd=containerd podman=/usr/bin/podman conmon=conmon crun=crun \
    golang-github-containers-common=/etc/containers/policy.json containernetworking-plugins=/usr/lib/cni/loopback \
    uidmap=newuidmap iptables=iptables util-linux=nsenter
}

# What builds Debian packages, and what looks at them in tests/package.
need_packaging() {
  need dpkg-dev=dpkg-buildpackage debhelper=dh python3-click=python:click fakeroot=fakeroot lintian=lintian \
    debootstrap=debootstrap
}

# pip_install VENV ARGUMENT...: pip's words go to a log, and are shown only if it fails.
pip_install() {
  local folder=$1 log=$build/pip.log
  shift
  mkdir -p "$build"
  "$folder/bin/python3" -m pip install --disable-pip-version-check "$@" >"$log" 2>&1 ||
    { tail -n 20 "$log" >&2; die "pip could not install $*; all it said is in $log"; }
}

# make_venv FOLDER PIP-ARGUMENT...: a virtual environment of the system's Python with what pip is told to install; made
# again only when the arguments, a file among them, or the interpreter changed.
make_venv() {
  local folder=$1 key argument
  shift
  need_python
  need python3-venv=python:ensurepip
  key=$({
    /usr/bin/python3 --version
    for argument; do printf '%s\n' "$argument"; [ ! -f "$argument" ] || cat "$argument"; done
  } | sha256sum)
  [ "$(cat "$folder/made-of" 2>/dev/null)" != "$key" ] || return 0
  [ -x "$folder/bin/python3" ] || /usr/bin/python3 -m venv "$folder"
  pip_install "$folder" "$@"
  printf '%s\n' "$key" >"$folder/made-of"
}
