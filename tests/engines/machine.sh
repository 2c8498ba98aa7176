#!/bin/bash
# machine.sh SYSTEM FOLDER...: become the first process of a machine for container engines. To be called in mount, process
# and network namespaces of its own, with the mounts private. SYSTEM (/, or a folder with another Debian in it) is its
# root, and whatever is written there goes to memory; each FOLDER is the caller's own under the same name, and the first
# one has an empty folder `root`. Prints this process's number as the caller sees it, and ends when its input ends.
set -euo pipefail
system=$1
shift
read -r pid _ </proc/self/stat
# an address that programs of one machine reach each other by
busybox ip link set lo up

memory=$1/root
mount -t tmpfs -o mode=755 tmpfs "$memory"
mkdir -m 755 "$memory"/{upper,work,root}
cd "$memory/root"
# no upper layer on the file system of SYSTEM: overlayfs refuses one that lies below its lower layer
mount -t overlay -o "lowerdir=$system,upperdir=$memory/upper,workdir=$memory/work" overlay .
cd "$memory/root"
mkdir -p proc sys dev run .caller
mount -t proc proc proc
mount --rbind /sys sys
mount --rbind /dev dev
mount -t tmpfs -o mode=1777 tmpfs dev/shm # podman keeps locks there
mount -t tmpfs -o mode=755 tmpfs run
for folder; do
  mkdir -p ".$folder"
  mount --bind "$folder" ".$folder"
done
pivot_root . .caller
cd /
umount -l /.caller
rmdir /.caller
mount --make-rshared / # as an init system leaves it; podman warns otherwise
echo "$pid"
# ignored, so that the kernel reaps the orphans that end up here
exec env --ignore-signal=CHLD cat >/dev/null
