#!/usr/bin/env bash
# Builds and tests what is committed with other majors of PostgreSQL, each in a release of Debian that has it, in a chroot
# below the build directory. Needs root and some 4 GB for each. Ends in one line per major; fails if one of them did.
#
#   scripts/majors.sh [MAJOR...] [-- SUITE...]     default: 17 -- regress system
#
# Suites are those of test.sh. The log of a major is build/majors/MAJOR.log.

source "$(dirname "$0")/common.sh"

declare -A release=([15]=bookworm [17]=trixie)
majors=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    [ -n "${release[$1]:-}" ] || die "no release of Debian is known to have PostgreSQL $1; known: ${!release[*]}"
    majors+=("$1")
    shift
done
[ ${#majors[@]} -gt 0 ] || majors=(17)
suites=("${@:2}")
[ ${#suites[@]} -gt 0 ] || suites=(regress system)
[ "$(id -u)" -eq 0 ] || die "only root can make a chroot"

need_packages debootstrap git
root() { realpath -m "$build/majors/$1"; }

# What this machine knows of its network holds inside, too.
copy_network_settings() { # copy_network_settings ROOT
    cp -L /etc/resolv.conf /etc/hosts "$1/etc/"
    grep -ls '^Acquire' /etc/apt/apt.conf.d/* | xargs -r cp -t "$1/etc/apt/apt.conf.d"
    csplit -zs -f "$1/usr/local/share/ca-certificates/host" -b %03d.crt /etc/ssl/certs/ca-certificates.crt '/BEGIN CERT/' '{*}'
    chroot "$1" update-ca-certificates >/dev/null
    [ ! -e /etc/pip.conf ] || cp /etc/pip.conf "$1/etc"
    [ ! -e "$HOME/.m2/settings.xml" ] || install -D -t "$1/root/.m2" "$HOME/.m2/settings.xml"
}

make_root() { # make_root MAJOR
    local root mirror
    root=$(root "$1")
    [ ! -d "$root" ] || return 0
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Component: main' | head -n 1)
    rm -rf "$root.new"
    mkdir -p "$root.new"
    debootstrap --variant=minbase --include=ca-certificates,git "${release[$1]}" "$root.new" "$mirror"
    copy_network_settings "$root.new"
    # Packages of servers start none.
    printf '#!/bin/sh\nexit 101\n' >"$root.new/usr/sbin/policy-rc.d"
    chmod +x "$root.new/usr/sbin/policy-rc.d"
    install -d "$root.new/etc/postgresql-common"
    echo 'create_main_cluster = false' >"$root.new/etc/postgresql-common/createcluster.conf"
    mv "$root.new" "$root"
}

# The mounts end with the namespace, whatever ends this script.
test_major() { # test_major MAJOR
    local root
    root=$(root "$1")
    make_root "$1"
    rm -rf "$root/src"
    git -c safe.directory='*' clone -q "file://$repository" "$root/src"
    unshare --mount bash -euc '
        root=$1 major=$2
        shift 2
        for each in proc sys dev; do mount --rbind "/$each" "$root/$each"; done
        mount -t tmpfs -o mode=1777 tmp "$root/tmp"
        exec chroot "$root" env OUTBOX_PG_MAJOR="$major" OUTBOX_BUILD=/build /src/scripts/test.sh "$@"
    ' test_major "$root" "$1" "${suites[@]}"
}

failed=0
for major in "${majors[@]}"; do
    say "PostgreSQL $major in ${release[$major]}: see $(root "$major").log"
    mkdir -p "$build/majors"
    test_major "$major" >"$(root "$major").log" 2>&1 || failed=1
    echo "PostgreSQL $major: $(tail -n 1 "$(root "$major").log")"
done
exit $failed
