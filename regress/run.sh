#!/usr/bin/env bash
# pg_regress and isolation tests against a private server that has the extension preloaded.
#
#   regress/run.sh [--discard-caches | --valgrind] [test ...]    names as in regress/sql or regress/specs; default: all
#
# --discard-caches sets debug_discard_caches = 1: each look-up in a catalog forgets all that was looked up
# before. The server must be built with assertions (docs/architecture/tests.md), and is slower by
# orders of magnitude: name the tests.
# --valgrind runs the server in valgrind, one as scripts/majors.sh builds it. An error whose stack has a function of
# ours is a failure. It is some 100 times slower.
#
# Every file in sql/ and specs/ is run: the schedules are made from what is there. All but those that
# extension.list names, with the reason, are run again against the SQL edition, installed by a role without
# privileges: edition.sed says it with other statements, and expected/sql_edition/ has patches for results that
# differ (diff -U1). Differences are printed, and left in $OUTBOX_BUILD/regress.

source "$(dirname "$0")/../scripts/common.sh"

discard_caches=0
valgrind=0
case ${1:-} in
    --discard-caches) discard_caches=1 && shift ;;
    --valgrind) valgrind=1 && shift ;;
    -*) die "unknown option $1" ;;
esac

need() { [ -x "$1" ] || die "$1 is missing: install the server package that brings it"; }
pgxs_test=$(dirname "$("$pg_config" --pgxs)")/../test
need "$pgxs_test/regress/pg_regress"
need "$pgxs_test/isolation/pg_isolation_regress"

wanted() { # wanted FOLDER SUFFIX ARGUMENT...: those of the tests that are in the folder
    local folder=$1 suffix=$2 name
    shift 2
    if [ $# -eq 0 ]; then
        for name in "$repository/regress/$folder"/*"$suffix"; do basename "$name" "$suffix"; done
    else
        for name; do [ ! -e "$repository/regress/$folder/$name$suffix" ] || echo "$name"; done
    fi
}
mapfile -t sql_tests < <(wanted sql .sql "$@")
mapfile -t spec_tests < <(wanted specs .spec "$@")
for_edition() { # for_edition TEST...
    [ $# -eq 0 ] || printf "%s\n" "$@" | grep -Fvx -f <(cut -d ' ' -f 1 "$repository/regress/extension.list")
}
mapfile -t edition_tests < <(for_edition "${sql_tests[@]}")
mapfile -t edition_specs < <(for_edition "${spec_tests[@]}")
[ $((${#sql_tests[@]} + ${#spec_tests[@]})) -gt 0 ] || die "no such test: $*"

directory=$(server_directory pg_outbox-regress)
trap 'stop_server "$directory"; rm -rf "$directory"' EXIT
mkdir -p "$directory/stage"
{
    stage_build "$directory/stage"
    echo "listen_addresses = ''"
    echo "unix_socket_directories = '$directory'"
    echo "max_prepared_transactions = 10"
    echo "max_worker_processes = 32"
    echo "fsync = off"
    echo "outbox.allow_drop_with_undelivered = on"
    [ $discard_caches -eq 0 ] || echo "debug_discard_caches = 1"
} >"$directory/settings"
if [ $valgrind -eq 1 ]; then
    as_server_user mkdir "$directory/valgrind"
    cat >"$directory/postgres" <<END
#!/bin/sh
exec valgrind --quiet --suppressions=$("$pg_config" --sharedir)/valgrind.supp --leak-check=no --undef-value-errors=yes --track-origins=no --time-stamp=yes --num-callers=30 \\
    --log-file=$directory/valgrind/%p.log "$(pg_bin)/postgres" "\$@"
END
    chmod 755 "$directory/postgres"
    server_program=$directory/postgres
fi
start_server "$directory" <"$directory/settings"

# The server's user reads the tests and writes the results; the checkout may be closed to him.
cp -R "$repository/regress" "$directory/tests"
cp -R "$repository/regress" "$directory/edition"
cp "$build/sql/pg_outbox--sql.sql" "$directory"
sed "s|@directory@|$directory|" "$repository/regress/edition.sed" >"$directory/edition.sed"
sed -i -f "$directory/edition.sed" "$directory"/edition/{sql/*.sql,specs/*.spec,expected/*.out}
for change in "$directory"/edition/expected/sql_edition/*.diff; do
    patch -s "$directory/edition/expected/$(basename "$change" .diff).out" "$change"
done
# 17 says it in other words.
[[ $("$pg_config" --version) =~ \ 1[56]\. ]] ||
    sed -i 's/cannot assign XIDs/cannot assign transaction IDs/' "$directory/edition/expected/enqueue.out"
cat >"$directory/install" <<'END'
#!/bin/sh
export PGHOST=${0%/*} PGUSER=postgres PGDATABASE=${1:-$PGDATABASE}
psql -qX -c "GRANT CREATE ON DATABASE $PGDATABASE TO edition_owner" && psql -qX -U edition_owner -f "$PGHOST/pg_outbox--sql.sql"
END
chmod 755 "$directory/install"
mkdir "$directory/results"
[ "$(id -u)" -ne 0 ] || chown -R postgres: "$directory/tests" "$directory/edition" "$directory/results"
chmod -R a+rX "$directory/tests" "$directory/edition" "$directory/pg_outbox--sql.sql"

run() { # run FOLDER PROGRAM TEST...
    local folder=$1 program=$2 output name
    shift 2
    [ $# -eq 0 ] && return
    name=$(basename "$program")
    output=$directory/results/${name}_$folder
    as_server_user mkdir "$output"
    as_server_user "$program" --inputdir="$directory/$folder" --outputdir="$output" \
        --bindir="$(pg_bin)" --host="$directory" --user=postgres \
        --dbname="$name" "$@"
}
status=0
cd /
run tests "$pgxs_test/regress/pg_regress" "${sql_tests[@]}" || status=1
run tests "$pgxs_test/isolation/pg_isolation_regress" "${spec_tests[@]}" || status=1
"$(pg_bin)/psql" -qX -h "$directory" -U postgres -c 'CREATE ROLE edition_owner LOGIN'
export INSTALL_EDITION=$directory/install
run edition "$pgxs_test/regress/pg_regress" "${edition_tests[@]}" || status=1
run edition "$pgxs_test/isolation/pg_isolation_regress" "${edition_specs[@]}" || status=1
rm -rf "$build/regress"
cp -R "$directory/results" "$build/regress"
[ $status -eq 0 ] || cat "$build"/regress/*/regression.diffs 2>/dev/null || true
if grep -E 'PANIC|terminated by signal|TRAP:' "$directory/server.log"; then
    say "a process of the server crashed"
    status=1
fi
if [ $valgrind -eq 1 ]; then
    stop_server "$directory" # whose last words count too
    rm -rf "$build/valgrind"
    cp -R "$directory/valgrind" "$build/valgrind"
    # An error is a block of lines; its stack names the library or, with debug information, files of the checkout.
    errors=$(cat "$build"/valgrind/*.log | awk -v RS='==[0-9:. ]*== *\n' '/(by|at) 0x[^\n]*outbox/')
    if [ -n "$errors" ]; then
        say "$errors"
        say "valgrind has found this; all that it says is in $build/valgrind"
        status=1
    fi
fi
exit $status
