#!/bin/bash
# system.sh SUITE...: make build/systems/SUITE, another Debian (trixie, sid) with its container engines, and print its path.
# Takes about a minute, 0.7 GB and root. The packages come from the mirror that this machine's apt uses, or DEBIAN_MIRROR.
# A folder that was made of the same list of packages is left alone; remove it to have newer ones.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/../../scripts/lib.sh"
packages=(
  runc crun containerd docker.io docker-cli podman conmon netavark containernetworking-plugins
  golang-github-containers-common iptables uidmap procps python3
)

[ $# -gt 0 ] || die "which Debian: trixie, sid?"
[ "$(id -u)" = 0 ] || die "not root"
need debootstrap=debootstrap
printf -v list '%s,' "${packages[@]}"
mkdir -p "$build/systems"
for suite; do
  folder=$build/systems/$suite
  if [ "$(cat "$folder/made-of" 2>/dev/null)" != "$list" ]; then
    from=${DEBIAN_MIRROR:-$(debian_mirror)}
    [ -n "$from" ] || die "apt has no mirror of this release; run apt-get update, or set DEBIAN_MIRROR"
    say "making $folder"
    rm -rf --one-file-system "$folder" "$folder.new"
    # in mounts of its own, so that the /proc that debootstrap mounts ends with it
    unshare --mount --propagation private debootstrap --variant=minbase --include="${list%,}" \
      "$suite" "$folder.new" "$from" >"$folder.log" 2>&1 ||
      { tail -n 20 "$folder.log" >&2; die "no Debian $suite; all that debootstrap said is in $folder.log"; }
    rm -f "$folder.new"/var/cache/apt/archives/*.deb
    printf '%s\n' "$list" >"$folder.new/made-of"
    mv "$folder.new" "$folder"
  fi
  printf '%s\n' "$folder"
done
