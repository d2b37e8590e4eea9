#!/usr/bin/env bash
# Builds Citus for the tests in tests/citus, below the build directory. Nothing outside of it changes.
#
#   scripts/citus.sh            about three minutes; a second if it is already built
#
# Citus is not a package of the distribution, and not part of this project. OUTBOX_CITUS_SOURCE names an archive of the
# source of Citus 13.2. Without it the script says that Citus is not tested and ends with status 3.

source "$(dirname "$0")/common.sh"

without_source=3
place=$(realpath -m "$build")/servers/citus # source/, stage/: as installed, built: what it was built from

find_source() {
    local archives=("$repository"/../shared/citus/citus-*.tar.*)
    archive=${OUTBOX_CITUS_SOURCE:-${archives[0]}}
    [ -z "${OUTBOX_CITUS_SOURCE:-}" ] || [ -f "$archive" ] || die "OUTBOX_CITUS_SOURCE: there is no file $archive"
    [ -f "$archive" ] && return
    say "NOT TESTED: Citus, because its source is not here. OUTBOX_CITUS_SOURCE names an archive of it."
    exit $without_source
}

# A new archive, a new minor version of the server or a change of this script builds it again.
built_from() {
    cat "$archive" "$0" | sha256sum
    "$pg_config" --version
}

unpack() {
    rm -rf "$place"
    mkdir -p "$place/source"
    tar -xf "$archive" -C "$place/source" --strip-components=1
    # Later minor versions of PostgreSQL 15 have a public function with the name of this private one.
    sed -i 's/^have_createdb_privilege(void)$/#define have_createdb_privilege citus_have_createdb_privilege\n&/' \
        "$place/source/src/include/pg_version_compat.h"
}

build_citus() {
    cd "$place/source"
    local compiler=gcc
    ! command -v ccache >/dev/null || compiler='ccache gcc'
    ./configure --without-libcurl PG_CONFIG="$(command -v "$pg_config")" CC="$compiler"
    make -j"$(nproc)" with_llvm=no COPT='-O1 -g0' # correctness is tested here, not speed
    make install with_llvm=no DESTDIR="$place/stage"
}

need_packages gcc make flex xz-utils "postgresql-server-dev-$pg_major" \
    lib{lz4,zstd,krb5,xslt1,pam0g,selinux1,readline,icu}-dev
find_source
if [ "$(built_from)" != "$(cat "$place/built" 2>/dev/null)" ]; then
    say "building Citus"
    unpack
    (build_citus) >"$place/build.log" 2>&1 || { tail -n 40 "$place/build.log" >&2; die "Citus could not be built"; }
    built_from >"$place/built"
fi
say "Citus is in $place/stage"
