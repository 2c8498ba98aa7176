#!/bin/bash
# in-cgroup.sh host|v1|v2 COMMAND...: run COMMAND where it sees one cgroup layout: the machine's own, the version 1
# hierarchies alone, or only cgroup2 on /sys/fs/cgroup. A private mount namespace; nothing outside of it changes, and no
# cgroup2 mount option is given, as these belong to the machine's one tree.
set -euo pipefail
layout=${1:?layout}
shift
case $layout in
  host) exec "$@" ;;
  v1 | v2) ;;
  *) echo "in-cgroup.sh: no layout $layout" >&2; exit 2 ;;
esac
if [ "${GPUHOOK_TEST_NAMESPACE:-}" != "$$" ]; then
  GPUHOOK_TEST_NAMESPACE=$$ exec unshare --mount --propagation private "$0" "$layout" "$@"
fi
unset GPUHOOK_TEST_NAMESPACE
kind=$(stat -f -c %T /sys/fs/cgroup)
if [ "$layout" = v1 ]; then
  [ "$kind" != cgroup2fs ] || { echo "in-cgroup.sh: this machine has cgroup version 2 only" >&2; exit 77; }
  ! mountpoint -q /sys/fs/cgroup/unified || umount /sys/fs/cgroup/unified
elif [ "$kind" != cgroup2fs ]; then
  umount -R /sys/fs/cgroup 2>/dev/null || umount -R -l /sys/fs/cgroup
  mount -t cgroup2 cgroup2 /sys/fs/cgroup
fi
exec "$@"
