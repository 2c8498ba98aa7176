#!/bin/bash
# realdriver.sh SUITE PACKAGE...: unpack packages of a Debian's NVIDIA driver (bookworm: 535, trixie: 550) into
# build/realdriver/SUITE and print its path. Nothing is installed. In the folder:
#   root      a driver root: the packages' files, the links that their scripts make, a loader cache
#   packages  for each package (libcuda1, libcuda1:i386) the list of what is in it, as dpkg-deb prints it
# Takes root, 0.9 GB and two minutes; about 300 MB come from the mirror that this machine's apt uses, or DEBIAN_MIRROR,
# through lists of its own. A folder that was made of the same packages by this very script is left alone; remove it to
# have newer ones.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/../scripts/lib.sh"

[ $# -gt 1 ] || die "which Debian (bookworm, trixie), and which packages?"
[ "$(id -u)" = 0 ] || die "not root"
suite=$1
shift
keys=/usr/share/keyrings/debian-archive-keyring.gpg
need apt=apt-get dpkg=dpkg-deb libc-bin=/sbin/ldconfig busybox-static=busybox debian-archive-keyring=$keys
folder=$build/realdriver/$suite
key=$({ cat "$0"; printf '%s\n' "$@"; } | sha256sum)
if [ "$(cat "$folder/made-of" 2>/dev/null)" = "$key" ]; then
  printf '%s\n' "$folder"
  exit
fi

from=${DEBIAN_MIRROR:-$(debian_mirror)}
[ -n "$from" ] || die "apt has no mirror of this release; run apt-get update, or set DEBIAN_MIRROR"
say "making $folder"
new=$folder.new work=$folder.apt tools=$folder.new/root/.tools
trap 'rm -rf --one-file-system "$new" "$work"' EXIT
rm -rf --one-file-system "$folder" "$new" "$work"
mkdir -p "$new"/{root,packages} "$work"/{lists/partial,cache/archives/partial,debs}

# An apt that knows this release alone and believes that nothing is installed.
: >"$work/status"
echo "deb [signed-by=$keys] $from $suite main contrib non-free non-free-firmware" >"$work/sources.list"
cat >"$work/apt.conf" <<END
APT::Architectures { "$(dpkg --print-architecture)"; "i386"; };
APT::Sandbox::User "root";
Dir::Etc::SourceList "$work/sources.list";
Dir::Etc::SourceParts "/dev/null";
Dir::State "$work";
Dir::State::Lists "$work/lists";
Dir::State::Status "$work/status";
Dir::Cache "$work/cache";
END
export APT_CONFIG=$work/apt.conf
{ apt-get -q update && (cd "$work/debs" && apt-get -q download "$@"); } >"$folder.log" 2>&1 ||
  { tail -n 20 "$folder.log" >&2; die "no driver of Debian $suite; all that apt said is in $folder.log"; }

mkdir -p "$new"/root/{usr/{bin,sbin,lib,lib64},etc/alternatives}
for name in bin sbin lib lib64; do ln -s "usr/$name" "$new/root/$name"; done
for file in "$work"/debs/*.deb; do
  package=$(dpkg-deb --field "$file" Package)
  case ${file##*/} in *_i386.deb) package+=:i386 ;; esac
  dpkg-deb --contents "$file" >"$new/packages/$package"
  # by tar, which follows the links of / as dpkg does when it installs
  dpkg-deb --fsys-tarfile "$file" | tar --extract --keep-directory-symlink --no-same-owner --directory "$new/root"
  case $package in
    nvidia-alternative) dpkg-deb --control "$file" "$new/nvidia" ;;
    glx-alternative-nvidia) dpkg-deb --control "$file" "$new/glx" ;;
  esac
done

# The scripts of two packages make the links by update-alternatives. They run here below the new root, with a shell of
# one binary and an update-alternatives that makes the links of the best alternative and keeps no account.
mkdir "$tools" "$new/root/dev"
: >"$new/root/dev/null"
cp "$(command -v busybox)" "$tools/busybox"
"$tools/busybox" --install -s "$tools"
for name in "$tools"/*; do [ ! -L "$name" ] || ln -sfn busybox "$name"; done
for name in dpkg-trigger dpkg-maintscript-helper; do printf '#!/.tools/sh\n' >"$tools/$name"; done
printf '#!/.tools/sh\nexit 1\n' >"$tools/dpkg-query" # no other package is installed
cat >"$tools/update-alternatives" <<'END'
#!/.tools/sh
[ "$1" = --install ] || exit 0
[ "$5" -gt "$(cat "/.tools/$3.best" 2>/dev/null || echo 0)" ] || exit 0
echo "$5" >"/.tools/$3.best"
at=$2 name=$3 to=$4
shift 5
while :; do
  ln -sfn "$to" "/etc/alternatives/$name"
  [ -e "$at" ] && [ ! -L "$at" ] || ln -sfn "/etc/alternatives/$name" "$at"
  [ "$1" = --slave ] || exit 0
  at=$2 name=$3 to=$4
  shift 4
done
END
chmod +x "$tools"/{dpkg-trigger,dpkg-maintscript-helper,dpkg-query,update-alternatives}
for name in nvidia glx; do
  cp "$new/$name/postinst" "$tools/postinst"
  env -i PATH=/.tools PWD=/ "$(command -v chroot)" "$new/root" \
    /.tools/sh /.tools/postinst triggered " register-$name-alternative-nvidia--pong " ||
    die "the script of Debian's package for $name alternatives failed"
done
rm -rf "$tools" "$new/root/dev" "$new/nvidia" "$new/glx"

cd "$new/root"
for place in usr/lib/*-linux-gnu; do printf '/%s\n' "$place"; done >etc/ld.so.conf
PATH=$PATH:/usr/sbin:/sbin ldconfig -r .
printf '%s\n' "$key" >"$new/made-of"
mv "$new" "$folder"
printf '%s\n' "$folder"
