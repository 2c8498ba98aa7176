#!/bin/sh
# spy.sh NOTES NEXT ARGUMENT...: a runtime that notes what config.json is when a container is to be created, then becomes
# NEXT. The engine calls it in the bundle.
notes=$1 next=$2
shift 2
for word; do
  [ "$word" != create ] || { sha256sum config.json && stat -c 'inode %i, %s bytes, changed %z' config.json; } >>"$notes"
done
exec "$next" "$@"
