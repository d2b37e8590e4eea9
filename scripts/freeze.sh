#!/usr/bin/env bash
# Keeps the SQL objects of the version being built in tests/upgrade, compressed. Run it once, when that version is released:
#
#   scripts/freeze.sh
#
# From the next version on, tests/system/test_upgrade.py upgrades databases that have these objects, and sql/<name>/upgrade
# must have the changes of tables that lead from them (sql/CMakeLists.txt).

source "$(dirname "$0")/common.sh"

version=$(sed -n 's/^project(pg_outbox VERSION \([0-9.]*\).*/\1/p' "$repository/CMakeLists.txt")
need_packages "${build_packages[@]}" xz-utils
configure product "$build"
build_targets "$build" pg_outbox_sql pg_inbox_sql
mkdir -p "$repository/tests/upgrade"
for name in pg_outbox pg_inbox; do
    script=$build/sql/$name--$version.sql
    frozen=$repository/tests/upgrade/$name--$version.sql.xz
    if [ -e "$frozen" ]; then
        xz -dc "$frozen" | cmp -s - "$script" ||
            die "$name $version is released, and has changed since: give it a new version in CMakeLists.txt"
    else
        xz -9c "$script" >"$frozen"
    fi
    say "$frozen"
done
