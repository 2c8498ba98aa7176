#!/bin/bash
# system.sh SUITE: make build/systems/SUITE-clean, a Debian (bookworm, trixie) with what the package gpuhook depends on,
# runc, and what is asked about the package there; print its path. Takes about a minute, 0.4 GB and root. The packages
# come from the mirror that this machine's apt uses, or DEBIAN_MIRROR. A folder that was made of the same list of
# packages is left alone; remove it to have newer ones.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/../../scripts/lib.sh"

suite=${1-}
[ -n "$suite" ] || die "which Debian: bookworm, trixie?"
[ "$(id -u)" = 0 ] || die "not root"
need debootstrap=debootstrap
# what is in Depends is there, so that `dpkg --install` proves that no more is needed
mapfile -t depends < <(sed -n '/^Package: gpuhook$/,/^Recommends:/p' "$root/packaging/deb/control" | grep -o 'python3[a-z-]*')
printf -v list '%s,' runc "${depends[@]}"
# debootstrap of Debian 12 can't order Debian 13's systemd, so apt-get installs what these bring
more=(systemd udev logrotate)
folder=$build/systems/$suite-clean
mkdir -p "$build/systems"
exec 9>"$folder.lock"
flock 9
if [ "$(cat "$folder/made-of" 2>/dev/null)" != "$list${more[*]}" ]; then
  from=${DEBIAN_MIRROR:-$(debian_mirror)}
  [ -n "$from" ] || die "apt has no mirror of this release; run apt-get update, or set DEBIAN_MIRROR"
  say "making $folder"
  rm -rf --one-file-system "$folder" "$folder.new"
  # in mounts of its own, so that the /proc that debootstrap mounts ends with it
  if ! {
    unshare --mount --propagation private debootstrap --variant=minbase --include="${list%,}" \
      "$suite" "$folder.new" "$from" &&
      unshare --mount --propagation private --pid --fork chroot "$folder.new" sh -c '
        mount -t proc proc /proc && export DEBIAN_FRONTEND=noninteractive &&
          exec apt-get -q install -y --no-install-recommends "$@"' sh "${more[@]}"
  } >"$folder.log" 2>&1; then
    tail -n 20 "$folder.log" >&2
    die "no Debian $suite; all that was said is in $folder.log"
  fi
  # Python's own packages are kept: one test installs them again
  find "$folder.new/var/cache/apt/archives" -name '*.deb' ! -name '*python3*' -delete
  printf '%s\n' "$list${more[*]}" >"$folder.new/made-of"
  mv "$folder.new" "$folder"
fi
printf '%s\n' "$folder"
