#!/usr/bin/env bash
# Makes the Debian packages, installs them in a root of Debian 12 that has nothing else, delivers an event with them, and
# removes them again. Needs root.

source "$(dirname "$0")/../scripts/common.sh"
source "$(dirname "$0")/../scripts/chroot.sh"

need_packages debootstrap
"$(dirname "$0")/deb.sh"
root=$build/deb/root
make_root bookworm "$root"
mkdir "$root/packages"
cp "$build"/deb/*.deb "$build/deb/pg-outbox/debian/tests/delivers" "$root/packages"
in_root "$root" bash -euc '
    rm /packages/*-dbgsym_*
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends /packages/*.deb
    # Only root may change what was installed, and nothing gives more rights to who runs it.
    wrong=$(for package in /packages/*.deb; do dpkg -L "$(dpkg-deb -f "$package" Package)"; done | sort -u |
        xargs -d "\n" -I{} find {} -maxdepth 0 ! -type l \( -perm /6022 -o ! -user root -o ! -group root \))
    [ -z "$wrong" ] || { echo "owner or mode: $wrong"; exit 1; }
    /packages/delivers
    for package in /packages/*.deb; do dpkg-deb -f "$package" Package; done | xargs apt-get purge -y -qq
    left=$(find / -xdev -not -path "/packages/*" -iregex ".*/\(lib\)?\(pg_\)?\(out\|in\)box[^/]*")
    [ -z "$left" ] || { echo "left behind: $left"; exit 1; }
'
echo "the packages were installed, have delivered, and were removed"
