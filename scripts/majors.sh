#!/usr/bin/env bash
# Builds and tests what is committed with other majors of PostgreSQL, each in a release of Debian that has it, in a chroot
# below the build directory. Needs root and some 4 GB for each. Ends in one line per major; fails if one of them did.
#
#   scripts/majors.sh [MAJOR...] [-- SUITE...]     default: 17 -- regress system
#
# Suites are those of test.sh. The log of a major is build/majors/MAJOR.log.

source "$(dirname "$0")/common.sh"
source "$(dirname "$0")/chroot.sh"

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
need_packages debootstrap git
root() { realpath -m "$build/majors/$1"; }

test_major() { # test_major MAJOR SUITE...
    local root
    root=$(root "$1")
    make_root "${release[$1]}" "$root"
    rm -rf "$root/src"
    git -c safe.directory='*' clone -q "file://$repository" "$root/src"
    in_root "$root" env OUTBOX_PG_MAJOR="$1" OUTBOX_BUILD=/build /src/scripts/test.sh "${@:2}"
}

failed=0
for major in "${majors[@]}"; do
    say "PostgreSQL $major in ${release[$major]}: see $(root "$major").log"
    mkdir -p "$build/majors"
    test_major "$major" "${suites[@]}" >"$(root "$major").log" 2>&1 || failed=1
    echo "PostgreSQL $major: $(tail -n 1 "$(root "$major").log")"
done
exit $failed
