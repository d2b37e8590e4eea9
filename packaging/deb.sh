#!/usr/bin/env bash
# Makes Debian packages of what is committed, below the build directory: build/deb.

source "$(dirname "$0")/../scripts/common.sh"

need_packages dpkg-dev lintian git postgresql-server-dev-all debhelper help2man "${build_packages[@]}" \
    libgrpc++-dev libprotobuf-dev protobuf-compiler librdkafka-dev librabbitmq-dev
packages=$build/deb
rm -rf "$packages"
mkdir -p "$packages/pg-outbox"
git -C "$repository" archive HEAD | tar -x -C "$packages/pg-outbox"
cp -r "$packages/pg-outbox/packaging/debian" "$packages/pg-outbox/debian"
cd "$packages/pg-outbox"
pg_buildext updatecontrol
dpkg-buildpackage --build=binary --no-sign
lintian --fail-on error,warning ../*.changes
ls ../*.deb
