#!/usr/bin/env bash
# Makes the zip for PGXN of what is committed, below the build directory, and builds and installs what is in it.

source "$(dirname "$0")/../scripts/common.sh"

need_packages git make unzip "${build_packages[@]}"
name=pg_outbox-$(sed -n 's/^project(pg_outbox VERSION \([0-9.]*\).*/\1/p' "$repository/CMakeLists.txt")
pgxn=$build/pgxn
rm -rf "$pgxn"
mkdir -p "$pgxn"
git -C "$repository" archive --format zip --prefix "$name/" --output "$(realpath "$pgxn")/$name.zip" HEAD
unzip -q "$pgxn/$name.zip" -d "$pgxn"
make -C "$pgxn/$name" -j "$(nproc)" PG_CONFIG="$pg_config" >"$pgxn/log"
make -C "$pgxn/$name" install DESTDIR="$(realpath "$pgxn")/root" >>"$pgxn/log"
find "$pgxn/root" -path '*/extension/pg_*.control' | grep -c . | grep -qx 2
echo "$pgxn/$name.zip"
