# Shared by demo.sh, test.sh and others: the build, a private server. To be sourced.
#
# A server refuses to run as root. A script run by root runs it as the user `postgres`, which comes
# with the package; any other user runs it with their own account.

set -euo pipefail
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=${OUTBOX_BUILD:-$repository/build}

say() { printf '%s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

source "$repository/scripts/packages.sh"

# Prints the last line of what the build says, or more if it fails.
build_targets() { # build_targets DIRECTORY [TARGET...]: default: all
    local directory=$1
    shift
    cmake --build "$directory" ${1:+--target "$@"} >"$directory/build.log" || { tail -n 60 "$directory/build.log" >&2; die "the build failed"; }
    tail -n 1 "$directory/build.log" >&2
}

# A tree that was configured with another preset is configured anew.
configure() { # configure PRESET DIRECTORY
    if [ "$(cat "$2/preset" 2>/dev/null)" != "$1" ]; then rm -rf "$2/CMakeCache.txt" "$2/CMakeFiles"; fi
    cmake -S "$repository" -B "$2" --preset "$1" ${PG_CONFIG:+-D "PG_CONFIG=$PG_CONFIG"} >/dev/null
    echo "$1" >"$2/preset"
}

pg_config=${PG_CONFIG:-pg_config}
pg_bin() { "$pg_config" --bindir; }

as_server_user() {
    if [ "$(id -u)" -eq 0 ]; then # which may not be able to read the current directory
        (cd / && exec setpriv --reuid=postgres --regid=postgres --init-groups -- "$@")
    else
        "$@"
    fi
}

# Creates a directory for the server's user, outside the checkout, which that user may not be able to read.
server_directory() {
    local directory
    directory=$(mktemp -d "${TMPDIR:-/tmp}/$1.XXXXXX")
    [ "$(id -u)" -ne 0 ] || chown postgres: "$directory"
    chmod 755 "$directory"
    printf '%s\n' "$directory"
}

# Installs the build below a directory, and prints the settings by which a server finds it there.
stage_build() {
    local stage=$1
    DESTDIR=$stage cmake --install "$build" >/dev/null
    chmod -R a+rX "$stage"
    local known
    known=$("$(pg_bin)/postgres" --describe-config | cut -f 1)
    if grep -qx extension_destdir <<<"$known"; then # Debian's patch
        echo "extension_destdir = '$stage'"
        echo "shared_preload_libraries = '\$libdir/pg_outbox'"
    elif grep -qx extension_control_path <<<"$known"; then # 18
        echo "extension_control_path = '$stage$("$pg_config" --sharedir):\$system'"
        echo "dynamic_library_path = '$stage$("$pg_config" --pkglibdir):\$libdir'"
        echo "shared_preload_libraries = 'pg_outbox'"
    else
        die "this server looks for extensions in its own directories only; run cmake --install $build"
    fi
}

# Starts a private server: initdb, settings from standard input, start. Prints nothing.
# server_program is what runs as postgres, if it is another.
start_server() {
    local directory=$1
    as_server_user "$(pg_bin)/initdb" -D "$directory/data" -U postgres --auth=trust \
        --encoding=UTF8 --locale=C.UTF-8 >"$directory/initdb.log"
    cat >>"$directory/data/postgresql.conf"
    as_server_user "$(pg_bin)/pg_ctl" -D "$directory/data" ${server_program:+-p "$server_program"} -l "$directory/server.log" -t 300 -w start \
        >/dev/null || { tail -n 20 "$directory/server.log" >&2; die "the server did not start"; }
}

stop_server() {
    as_server_user "$(pg_bin)/pg_ctl" -D "$1/data" -m fast -w stop >/dev/null 2>&1 || true
}
