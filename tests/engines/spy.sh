#!/bin/sh
# spy.sh NOTES NEXT ARGUMENT...: a runtime that notes what config.json is when a container is to be created, then becomes
# NEXT. The engine names the bundle, or calls it there.
notes=$1 next=$2 bundle=. word=
shift 2
for argument; do
  [ "$word" != --bundle ] || bundle=$argument
  word=$argument
done
for word; do
  [ "$word" != create ] ||
    (cd "$bundle" && sha256sum config.json && stat -c 'inode %i, %s bytes, changed %z' config.json) >>"$notes"
done
exec "$next" "$@"
