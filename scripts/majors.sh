#!/usr/bin/env bash
# Builds and tests what is committed with other majors of PostgreSQL, each in a chroot of a release of Debian or Ubuntu that
# has it, below the build directory. Needs root and some 4 GB for each. Ends in one line per server; fails if one of them did.
#
#   scripts/majors.sh [SERVER...] [-- SUITE...]    default: 15-asserts 16 17 18 -- regress system
#
# SERVER is a major, or MAJOR-asserts: that major built from its source package, with assertions and what valgrind needs.
# Suites are those of test.sh; `valgrind` is for servers with assertions. The log of a server is build/majors/SERVER.log.

source "$(dirname "$0")/common.sh"
source "$(dirname "$0")/chroot.sh"

declare -A release=([15]=bookworm [16]=noble [17]=trixie [18]=forky)
servers=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    [ -n "${release[${1%-asserts}]:-}" ] || die "no release is known to have PostgreSQL $1; known: ${!release[*]}"
    servers+=("$1")
    shift
done
[ ${#servers[@]} -gt 0 ] || servers=(15-asserts 16 17 18)
suites=("${@:2}")
[ ${#suites[@]} -gt 0 ] || suites=(regress system)
need_packages debootstrap git curl
majors=$(realpath -m "$build/majors")
mkdir -p "$majors"

# Extensions are found without being installed, as with Debian's packages, whose patches the source has. The prefix must
# contain "postgres".
build_with_asserts() { # build_with_asserts MAJOR; prints the pg_config
    local prefix=/opt/postgresql-$1
    if [ ! -x "$prefix/bin/pg_config" ]; then
        sed -n 's/^deb /deb-src /p' /etc/apt/sources.list >/etc/apt/sources.list.d/source.list
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
    fi >&2
    echo "$prefix/bin/pg_config"
}

test_server() { # test_server SERVER SUITE...
    local major=${1%-asserts} root
    root=$majors/$major
    make_root "${release[$major]}" "$root"
    rm -rf "$root/src"
    git -c safe.directory='*' clone -q "file://$repository" "$root/src"
    in_root "$root" env OUTBOX_PG_MAJOR="$major" OUTBOX_BUILD="/build-$1" bash -euc "
        $(declare -f build_with_asserts)
        [ $1 = $major ] || { PG_CONFIG=\$(build_with_asserts $major); export PG_CONFIG; }
        exec /src/scripts/test.sh ${*:2}"
}

failed=0
for server in "${servers[@]}"; do
    say "PostgreSQL $server in ${release[${server%-asserts}]}: see $majors/$server.log"
    test_server "$server" "${suites[@]}" >"$majors/$server.log" 2>&1 || failed=1
    echo "PostgreSQL $server: $(tail -n 1 "$majors/$server.log")"
done
exit $failed
