#!/usr/bin/env bash
# Builds and tests with other majors of PostgreSQL, each in a chroot of a release of Debian or Ubuntu that
# has it, below the build directory. Needs root and some 4 GB for each. Ends in one line per server; fails if one of them did.
#
#   scripts/majors.sh [SERVER...] [-- SUITE...]    default: 15-asserts 16 17 18 -- regress system
#   scripts/majors.sh --upgrade                    pg_upgrade from 15 to 17, from 17 to 18 and from 15 to 18, with a backlog
#
# SERVER is a major, or MAJOR-asserts: that major built from its source package, with assertions and what valgrind needs.
# Suites are those of test.sh; `valgrind` is for servers with assertions. The log of a server is build/majors/SERVER.log.

source "$(dirname "$0")/common.sh"
source "$(dirname "$0")/chroot.sh"

declare -A release=([15]=bookworm [16]=noble [17]=trixie [18]=forky)
servers=()
upgrade=
if [ "${1:-}" = --upgrade ]; then
    upgrade=1
    shift
fi
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    [ -n "${release[${1%-asserts}]:-}" ] || die "no release is known to have PostgreSQL $1; known: ${!release[*]}"
    servers+=("$1")
    shift
done
[ -n "$upgrade" ] || [ ${#servers[@]} -gt 0 ] || servers=(15-asserts 16 17 18)
suites=("${@:2}")
[ ${#suites[@]} -gt 0 ] || suites=(regress system)
need_packages debootstrap curl
majors=$(realpath -m "$build/majors")
mkdir -p "$majors"

# Extensions are found without being installed, as with Debian's packages, whose patches the source has. The prefix must
# contain "postgres".
build_with_asserts() { # build_with_asserts MAJOR; prints the pg_config
    set -e # which a function that is called by $(...) does not inherit
    local prefix=/opt/postgresql-$1
    if [ ! -x "$prefix/bin/pg_config" ]; then
        sed -n '1s/^deb /deb-src /p' /etc/apt/sources.list >/etc/apt/sources.list.d/source.list
        apt-get update -qq
        apt-get install -y -qq --no-install-recommends build-essential dpkg-dev bison flex perl valgrind pkg-config \
            libreadline-dev zlib1g-dev libssl-dev libxml2-dev libicu-dev
        mkdir -p /tmp/server && chown _apt /tmp/server && cd /tmp/server
        apt-get source -qq "postgresql-$1"
        cd "postgresql-$1"-*/
        ./configure --prefix="$prefix" --enable-cassert --enable-debug --with-openssl --with-libxml --with-icu \
            CFLAGS='-O1 -fno-omit-frame-pointer' CPPFLAGS=-DUSE_VALGRIND
        make -s -j "$(nproc)" && make -s -j "$(nproc)" -C contrib
        make -s install && make -s -C contrib install && make -s -C src/test/regress install && make -s -C src/test/isolation install
        cp src/tools/valgrind.supp "$("$prefix/bin/pg_config" --sharedir)" # reports that are not errors
    fi >&2
    echo "$prefix/bin/pg_config"
}

get_source() { # get_source ROOT: as /src, with the times of the files, so that a build there goes on
    rm -rf "$1/src"
    mkdir "$1/src"
    { # status 1 means that a file changed meanwhile, such as a cache of Python
        tar -C "$repository" -c --exclude='./build*' --exclude=./.git --exclude=__pycache__ . || [ $? -eq 1 ]
    } | tar -C "$1/src" --no-same-owner -x
}

# All three servers in the newest release: what the older releases have of them runs there too.
test_upgrade() {
    local root=$majors/18 major
    make_root "${release[18]}" "$root"
    get_source "$root"
    for major in 15 17; do package_sources "${release[$major]}" | sed 's/^/deb /'; done >"$root/etc/apt/sources.list.d/older.list"
    in_root "$root" bash -euc '
        source /src/scripts/common.sh
        need_packages "${build_packages[@]}" libprotobuf-dev python3-pytest python3-psycopg \
            postgresql-{15,17,18} postgresql-server-dev-{15,17,18}
        at() { echo "/usr/lib/postgresql/$1/bin/pg_config"; }
        for major in 15 17 18; do
            build=/build-upgrade-$major PG_CONFIG=$(at $major)
            configure product "$build"
            build_targets "$build"
        done
        cmake --install /build-upgrade-18 >/dev/null # pg_upgrade to 18 looks for the library there only
        status=0
        for pair in "15 17" "17 18" "15 18"; do
            read -r old new <<<"$pair"
            say "pg_upgrade from $old to $new"
            REQUIRE_ALL_TESTS=1 OUTBOX_OLD_PG_CONFIG=$(at $old) OUTBOX_OLD_BUILD=/build-upgrade-$old PG_CONFIG=$(at $new) \
                OUTBOX_BUILD=/build-upgrade-$new python3 -m pytest -q -p no:cacheprovider /src/tests/system/test_pg_upgrade.py || status=1
        done
        exit $status
    ' >"$majors/upgrade.log" 2>&1
}

test_server() { # test_server SERVER SUITE...
    local major=${1%-asserts} root
    root=$majors/$major
    make_root "${release[$major]}" "$root"
    get_source "$root"
    in_root "$root" env OUTBOX_PG_MAJOR="$major" OUTBOX_BUILD="/build-$1" \
        bash -euc "
        $(declare -f build_with_asserts)
        [ $1 = $major ] || { PG_CONFIG=\$(build_with_asserts $major); export PG_CONFIG; }
        exec /src/scripts/test.sh ${*:2}"
}

failed=0
if [ -n "$upgrade" ]; then
    say "pg_upgrade in ${release[18]}: see $majors/upgrade.log"
    test_upgrade || failed=1
    grep -E '^(pg_upgrade|[0-9]+ (passed|failed))' "$majors/upgrade.log"
fi
for server in "${servers[@]}"; do
    say "PostgreSQL $server in ${release[${server%-asserts}]}: see $majors/$server.log"
    if ! test_server "$server" "${suites[@]}" >"$majors/$server.log" 2>&1; then
        failed=1
        grep -E '^(failed:|not ok|test .* FAILED)' "$majors/$server.log" >&2 || tail -n 40 "$majors/$server.log" >&2
    fi
    echo "PostgreSQL $server: $(tail -n 1 "$majors/$server.log")"
done
exit $failed
